"""Weights in the order in which matrix instructions read them, and which tensors hold one."""

from __future__ import annotations

from torch import Tensor


def shuffle_weight(x: Tensor, layout: tuple[int, int], use_int4: bool) -> Tensor:
    """Tiles of ``IN x 2*IK`` elements become contiguous, their 16-byte pieces column after column."""
    rows, columns = layout
    tile_columns = 2 * columns
    piece = 32 if use_int4 else 16 // x.element_size()
    assert x.shape[-2] % rows == 0, f"{x.shape[-2]} rows are no multiple of {rows}"
    assert x.shape[-1] % tile_columns == 0, f"{x.shape[-1]} columns are no multiple of {tile_columns}"
    tiles = x.reshape(-1, x.shape[-2] // rows, rows, x.shape[-1] // tile_columns, tile_columns // piece, piece)
    shuffled = tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)
    shuffled.is_shuffled = True
    return shuffled
