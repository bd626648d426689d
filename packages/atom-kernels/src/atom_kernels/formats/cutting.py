"""Parts of a matrix: which tiles of its scales a cut takes, and when a cut needs smaller tiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd

import torch

from atom_kernels.formats.weight_format import Part, WeightFormat


def format_of_cuts(
    weight_format: WeightFormat, rows: Sequence[tuple[int, int]], columns: tuple[int, int]
) -> WeightFormat:
    """The format that can hold parts of matrices, one below the other: their own, or with smaller tiles.

    A tile that a cut goes through becomes several with equal scales, which changes no value.

    Args:
        rows: (first, last + 1) of each part in its matrix, in their order.
        columns: likewise; the same for all parts.

    Raises:
        ValueError: a cut goes through codes that lie in one byte, or through tiles whose size the format fixes.
    """
    starts = accumulate((last - first for first, last in rows[:-1]), initial=0)
    row_edges = [first for first, _ in rows] + list(starts)
    for part in weight_format.parts.values():
        if not part.is_scale and part.columns and columns[0] % part.columns:
            raise ValueError(
                f"{weight_format.name} holds {part.columns} inputs in a byte: it cannot be cut at input {columns[0]}"
            )
    scale = weight_format.parts.get("scale")
    if scale is None:
        return weight_format
    down = gcd(scale.rows, *row_edges)
    across = scale.columns and gcd(scale.columns, columns[0])
    return weight_format if (down, across) == (scale.rows, scale.columns) else weight_format.with_tiles(down, across)


def cut(
    tensor: torch.Tensor, source: Part, target: Part, rows: tuple[int, int], columns: tuple[int, int]
) -> torch.Tensor:
    """The elements of `tensor` (of part `source`) for rows and columns of its matrix, as part `target` has them.

    Args:
        rows, columns: (first, last + 1) in the matrix; `format_of_cuts` has seen them.
    """
    tensor = _cut_dim(tensor, -2, source.rows, target.rows, rows)
    if source.columns is None or target.columns is None:
        return tensor
    return _cut_dim(tensor, -1, source.columns, target.columns, columns)


def _cut_dim(tensor: torch.Tensor, dim: int, source: int, target: int, span: tuple[int, int]) -> torch.Tensor:
    first, last = span[0] // source, -(-span[1] // source)
    taken = tensor.narrow(dim, first, last - first)
    if source == target:
        return taken
    repeated = taken.repeat_interleave(source // target, dim=dim)
    start = (span[0] - first * source) // target
    return repeated.narrow(dim, start, -(-(span[1] - span[0]) // target))
