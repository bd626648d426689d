"""The sequences of a step, as programs of Triton kernels find them without the host."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import CHUNK, MAX_TOKEN_BY_TOKEN

# Lanes that look for a sequence at a time.
_LANES = tl.constexpr(128)
_CHUNK = tl.constexpr(CHUNK)
_MAX_TOKEN_BY_TOKEN = tl.constexpr(MAX_TOKEN_BY_TOKEN)


@triton.jit
def load_sequence(place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr):
    """First row, end, slot, and how many tokens of the sequence came before.

    Places are counted from 0: rows before the first sequence, the sequences, rows behind the last one. Rows of no
    sequence are as those of one that pads the batch: their slot is -1.
    """
    sequence = place - 1
    is_sequence = (sequence >= 0) & (sequence < num_sequences)
    first = tl.load(query_start_loc_ptr + sequence, mask=sequence >= 0, other=0)
    end = tl.load(query_start_loc_ptr + place, mask=sequence < num_sequences, other=0)
    end = tl.where(sequence < num_sequences, end, num_rows)
    slot = tl.load(slots_ptr + sequence, mask=is_sequence, other=-1).to(tl.int64)
    length = tl.load(seq_lens_ptr + sequence, mask=is_sequence, other=0)
    return first, end, slot, length - (end - first)


@triton.jit
def rows_in_chunks(first, end, context):
    """First row and end of what a step computes of a sequence in chunks: rows before and behind go token by token.

    The chunks that a step has only a part of are its first and its last one.
    """
    at_first = tl.minimum(_CHUNK - context % _CHUNK, end - first)
    at_last = (end - first - at_first) % _CHUNK
    begin = tl.where(at_first <= _MAX_TOKEN_BY_TOKEN, first + at_first, first)
    stop = tl.where(at_last <= _MAX_TOKEN_BY_TOKEN, end - at_last, end)
    # With nothing in between all rows are before it.
    is_empty = begin >= stop
    return tl.where(is_empty, end, begin), tl.where(is_empty, end, stop)


@triton.jit
def find_chunk(program, num_sequences, query_start_loc_ptr, ROWS: tl.constexpr, MORE: tl.constexpr):
    """The place (see `load_sequence`) that a program serves, and which of its chunks of ROWS rows.

    Place i has programs from ``first_of_place(i)`` on, up to those of place i + 1: MORE than whole chunks fit into its
    rows, and no sum over sequences is needed to find them. So ``num_programs`` serve all rows; some of them have none.
    """
    last = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    for at in range(0, num_sequences + 1, _LANES):
        lanes = at + tl.arange(0, _LANES)
        inside = lanes <= num_sequences
        # Place i + 1 begins where sequence i does; place 0 begins at row 0.
        first_row = tl.load(query_start_loc_ptr + lanes, mask=inside, other=0)
        begins = first_of_place(lanes + 1, first_row, ROWS, MORE)
        reached = inside & (begins <= program)
        last = tl.maximum(last, tl.max(tl.where(reached, lanes + 1, 0), axis=0))
        start = tl.maximum(start, tl.max(tl.where(reached, begins, 0), axis=0))
    return last, program - start


@triton.jit
def first_of_place(place, first_row, ROWS: tl.constexpr, MORE: tl.constexpr):
    """The first of the programs that serve a place; see `find_chunk`."""
    return place * MORE + first_row // ROWS


def num_programs(num_rows: int, num_sequences: int, rows: int, more: int) -> int:
    """Programs that serve all rows of a step; see `find_chunk`."""
    return more * (2 + num_sequences) + num_rows // rows
