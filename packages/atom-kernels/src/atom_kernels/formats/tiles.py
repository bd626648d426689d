"""What the weights that share a scale have in common."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from atom_kernels.formats.weight_format import Part


def largest_of_tiles(weight: torch.Tensor, part: Part) -> torch.Tensor:
    """The largest magnitude among the weights of each element of a part, in float32."""
    return tiles(weight.float().abs(), part).amax(dim=(-3, -1))


def smallest_and_largest(weight: torch.Tensor, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest number of each tile, in float32."""
    parts = tiles(weight.float(), part)
    return parts.amin(dim=(-3, -1)), parts.amax(dim=(-3, -1))


def tiles(weight: torch.Tensor, part: Part) -> torch.Tensor:
    """``[..., N, K] -> [..., tiles, rows, tiles, columns]``; zeros fill up incomplete tiles."""
    num_rows, num_columns = weight.shape[-2:]
    columns = part.columns or num_columns
    down, across = part.shape(num_rows, num_columns)
    filled = pad(weight, (0, across * columns - num_columns, 0, down * part.rows - num_rows))
    return filled.reshape(*weight.shape[:-2], down, part.rows, across, columns)
