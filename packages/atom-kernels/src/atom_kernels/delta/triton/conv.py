"""The short convolution in Triton: a program has some rows of a sequence and a block of channels."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.triton.sequences import find_chunk, load_sequence
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _load_inputs(x_ptr, x_stride, state_ptr, position, channels, mask, goes_on, BEFORE: tl.constexpr):
    """Inputs of a sequence, counted from its first row of this step; those before it are in its state, or are zeros."""
    is_here = position >= 0
    rows = tl.load(x_ptr + position * x_stride + channels, mask=mask & is_here, other=0.0)
    before = state_ptr + channels * BEFORE + position + BEFORE
    return tl.where(is_here, rows, tl.load(before, mask=mask & (position < 0) & goes_on, other=0.0))


@triton.jit
def _keep_state(
    x_ptr, x_stride, state_ptr, kept_ptr, row, channels, inside, goes_on,
    BEFORE: tl.constexpr, BLOCK_BEFORE: tl.constexpr,
):  # fmt: skip
    """Writes the state behind a row of a sequence, which may take the place of the state that it is made from."""
    columns = tl.arange(0, BLOCK_BEFORE)[None, :]
    channels, mask = channels[:, None], inside[:, None] & (columns < BEFORE)
    position = row + 1 - BEFORE + columns
    state = _load_inputs(x_ptr, x_stride, state_ptr, position, channels, mask, goes_on, BEFORE)
    # No thread writes what another has yet to read.
    tl.debug_barrier()
    tl.store(kept_ptr + channels * BEFORE + columns, state, mask=mask)


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def short_conv_kernel(
    x_ptr, out_ptr, states_ptr, slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr, weight_ptr,
    num_rows, num_sequences, num_kept, x_stride, slot_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_BEFORE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[chunks of ROWS rows (see find_chunk), blocks of channels]``; the weight is ``[WIDTH, CHANNELS]``.

    Rows of x are `x_stride` elements apart, and slots of states `slot_stride`.

    ROWS is at least WIDTH - 1, so that only a sequence's first program reads its state: that one keeps states too, and
    goes row by row. All others have TILE rows side by side.
    """
    BEFORE: tl.constexpr = WIDTH - 1
    place, chunk = find_chunk(tl.program_id(0), num_sequences, query_start_loc_ptr, ROWS, 1)
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    count, begin, goes_on = end - first, chunk * ROWS, context > 0
    if begin < count:
        channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = channels < CHANNELS
        mask = inside & (slot >= 0)
        x_ptr += first.to(tl.int64) * x_stride
        out_ptr += first.to(tl.int64) * CHANNELS
        state_ptr = states_ptr + slot * slot_stride
        wait_for_inputs(DEPENDENT)
        if chunk == 0:
            for row in range(tl.minimum(ROWS, count)):
                row = tl.full([], row, tl.int64)
                summed = tl.zeros([BLOCK], tl.float32)
                for tap in tl.static_range(WIDTH):
                    weight = tl.load(weight_ptr + tap * CHANNELS + channels, mask=inside, other=0.0)
                    position = row - BEFORE + tap
                    value = _load_inputs(x_ptr, x_stride, state_ptr, position, channels, mask, goes_on, BEFORE)
                    summed += value.to(tl.float32) * weight.to(tl.float32)
                out = _silu(summed).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + row * CHANNELS + channels, out, mask=inside)
        else:
            for first_of_tile in range(begin, tl.minimum(begin + ROWS, count), TILE):
                rows = (first_of_tile + tl.arange(0, TILE)).to(tl.int64)[:, None]
                in_rows = rows < count
                tile = tl.zeros([TILE, BLOCK], tl.float32)
                for tap in tl.static_range(WIDTH):
                    weight = tl.load(weight_ptr + tap * CHANNELS + channels, mask=inside, other=0.0)
                    pointers = x_ptr + (rows - BEFORE + tap) * x_stride + channels[None, :]
                    value = tl.load(pointers, mask=in_rows & mask[None, :], other=0.0)
                    tile += value.to(tl.float32) * weight.to(tl.float32)[None, :]
                out = _silu(tile).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + rows * CHANNELS + channels[None, :], out, mask=in_rows & inside[None, :])
        if (chunk == 0) & (slot >= 0):
            kept_slots_ptr += (place - 1) * num_kept
            in_place = tl.full([], -1, tl.int32)
            for column in range(tl.where(count <= num_kept, num_kept - count, num_kept - 1), num_kept):
                kept = tl.load(kept_slots_ptr + column).to(tl.int64)
                last = (count - num_kept + column).to(tl.int64)
                # All others are made from the state that this one overwrites.
                in_place = tl.where(kept == slot, column, in_place)
                if (kept >= 0) & (kept != slot):
                    kept_ptr = states_ptr + kept * slot_stride
                    _keep_state(
                        x_ptr, x_stride, state_ptr, kept_ptr, last, channels, inside, goes_on, BEFORE, BLOCK_BEFORE
                    )
            if in_place >= 0:
                last = (count - num_kept + in_place).to(tl.int64)
                _keep_state(
                    x_ptr, x_stride, state_ptr, state_ptr, last, channels, inside, goes_on, BEFORE, BLOCK_BEFORE
                )
