"""The sequences of a step, as programs of Triton kernels find them without the host."""

from __future__ import annotations

import triton
import triton.language as tl

# Lanes that look for a sequence at a time.
_LANES = tl.constexpr(128)


@triton.jit
def load_sequence(place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr):
    """First row, end, slot, and whether the sequence goes on.

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
    return first, end, slot, length > end - first


@triton.jit
def find_chunk(program, num_sequences, query_start_loc_ptr, CHUNK: tl.constexpr):
    """The place (see `load_sequence`) that a program serves, and which of its chunks.

    Chunks are counted from a sequence's first row. Place i has programs from ``i + first row // CHUNK`` on, up to those
    of place i + 1: never fewer than it has chunks, and no sum over sequences is needed to find them. So
    ``2 + num_sequences + num_rows // CHUNK`` programs serve all rows; some of them have none.
    """
    last = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    for at in range(0, num_sequences + 1, _LANES):
        lanes = at + tl.arange(0, _LANES)
        inside = lanes <= num_sequences
        # Place i + 1 begins where sequence i does; place 0 begins at row 0.
        begins = lanes + 1 + tl.load(query_start_loc_ptr + lanes, mask=inside, other=0) // CHUNK
        reached = inside & (begins <= program)
        last = tl.maximum(last, tl.max(tl.where(reached, lanes + 1, 0), axis=0))
        start = tl.maximum(start, tl.max(tl.where(reached, begins, 0), axis=0))
    return last, program - start
