"""The end of a sum whose other part comes in pieces, in Triton: see `pieces`."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.reduce.triton_kernels import finish_tile
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def _or_of_piece(before, NUMBER: tl.constexpr, part_ptr, piece, place, inside):
    """This rank's row if it is in the piece of that number; otherwise nothing is read, and it is what it was before.

    AMD's compiler takes no pointer that is chosen at run time.
    """
    is_here = piece == NUMBER
    return tl.where(is_here, tl.load(part_ptr + place, mask=inside & is_here, other=0.0), before)


@triton.jit(do_not_specialize=["first_number", "piece_rows"])
def add_pieces_kernel(
    part0_ptr, part1_ptr, part2_ptr, part3_ptr, part4_ptr, part5_ptr, part6_ptr, part7_ptr,
    slots_ptr, numbers_ptr, first_number, piece_rows,
    residual_ptr, weight_ptr, out_ptr, total_ptr, eps, offset, SLOTS: tl.constexpr, SLOT_ELEMENTS: tl.constexpr,
    NORM: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row of the sum, once the other rank's piece with it has arrived: the same bits on both ranks.

    Each part is a piece of this rank, of `piece_rows` rows; the last may have less. What arrives of the first piece has
    `first_number`, and so on.
    """
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    row = tl.program_id(0)
    piece = row // piece_rows
    place = (row - piece * piece_rows) * SIZE + columns
    # Numbers wrap where 31 bits end.
    number = (first_number + piece) & 0x7FFFFFFF
    slot = number % SLOTS
    arrived_ptr = slots_ptr + slot.to(tl.int64) * SLOT_ELEMENTS
    wait_for_inputs(DEPENDENT)
    mine = tl.load(part0_ptr + place, mask=inside & (piece == 0), other=0.0)
    mine = _or_of_piece(mine, 1, part1_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 2, part2_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 3, part3_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 4, part4_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 5, part5_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 6, part6_ptr, piece, place, inside)
    mine = _or_of_piece(mine, 7, part7_ptr, piece, place, inside)
    while tl.atomic_add(numbers_ptr + slot, 0, sem="acquire", scope="sys") != number:
        pass
    summed = mine.to(tl.float32) + tl.load(arrived_ptr + place, mask=inside, other=0.0).to(tl.float32)
    finish_tile(
        summed.to(mine.dtype), row * SIZE + columns, columns, inside, residual_ptr, weight_ptr, out_ptr, total_ptr,
        eps, offset, NORM, SIZE,
    )  # fmt: skip
