"""Rounding a matrix to another number format, some rows at a time, so that it is never held a second time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from atom_kernels.formats import WeightFormat, weight_specs

# Rounding takes several float32 copies of what it rounds: a piece is a small part of a large matrix.
_MOST_PIECES = 32
_FEWEST_NUMBERS = 2**14


def rounded(
    tensors: Mapping[str, torch.Tensor], held: WeightFormat, wanted: WeightFormat, shape: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """The tensors of a matrix of `shape` in the format `wanted`, from those in the format `held`.

    Formats round each tile by itself, so that the pieces change no number.
    """
    num_rows, num_columns = shape
    device = next(iter(tensors.values())).device
    specs = weight_specs(wanted, num_rows, num_columns)
    made = {name: torch.empty(spec.shape, dtype=spec.dtype, device=device) for name, spec in specs.items()}
    step = _rows_of_a_piece(held, wanted, shape)
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        piece = {name: _rows(tensor, held, name, (first, last)) for name, tensor in tensors.items()}
        for name, tensor in wanted.quantize(held.dequantize(piece, num_columns)).items():
            _rows(made[name], wanted, name, (first, last)).copy_(tensor)
    return made


def _rows_of_a_piece(held: WeightFormat, wanted: WeightFormat, shape: tuple[int, int]) -> int:
    """A multiple of the rows of all tiles."""
    tile = math.lcm(*(part.rows for one in (held, wanted) for part in one.parts.values()))
    rows = max(-(-shape[0] // _MOST_PIECES), -(-_FEWEST_NUMBERS // shape[1]))
    return -(-rows // tile) * tile


def _rows(tensor: torch.Tensor, weight_format: WeightFormat, name: str, rows: tuple[int, int]) -> torch.Tensor:
    height = weight_format.parts[name].rows
    return tensor[rows[0] // height : -(-rows[1] // height)]
