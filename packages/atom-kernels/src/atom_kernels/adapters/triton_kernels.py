"""What adapters add, in Triton: the products with A by parts of the inputs, then the sum of these, and B.

Shapes: T tokens, I inputs, O outputs, R rows of A, of which RANK belong to one part of the outputs. No program knows of
other tokens than its own, so that a result does not depend on the batch. Matrices do not depend on other kernels, and
places were written by a plain launch: both are read while the kernel before still runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def shrink_kernel(
    x_ptr, places_ptr, a_ptr, sums_ptr, x_stride,
    NUM_PLACES: tl.constexpr, INPUTS: tl.constexpr, R: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[T, blocks of R, blocks of I]``: ``sums[T, blocks of I, R] = A x`` over the block's inputs."""
    token, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    place = tl.load(places_ptr + token)
    has_adapter = (place > 0) & (place <= NUM_PLACES)
    rows, columns = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R), split * BLOCK_I + tl.arange(0, BLOCK_I)
    is_row, is_column = has_adapter & (rows < R), has_adapter & (columns < INPUTS)
    a_at = a_ptr + (place - 1) * (R * INPUTS) + rows[:, None] * INPUTS + columns[None, :]
    a = tl.load(a_at, mask=is_row[:, None] & is_column[None, :], other=0.0)
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + token * x_stride + columns, mask=is_column, other=0.0)
    sums = tl.sum(a.to(tl.float32) * x.to(tl.float32)[None, :], axis=1)
    tl.store(sums_ptr + (token * tl.num_programs(2) + split) * R + rows, sums, mask=is_row)


@triton.jit
def expand_kernel(
    y_ptr, sums_ptr, places_ptr, b_ptr, tiles_ptr, y_stride,
    NUM_PLACES: tl.constexpr, OUTPUTS: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, SPLITS: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[T, tiles]``: ``y += B sums`` over a tile's outputs, which belong to one part.

    `tiles_ptr` has int32 ``[tiles, 3]``: the part, the first output and the part's end, multiples of ALIGNED.
    """
    token, tile = tl.program_id(0).to(tl.int64), tiles_ptr + tl.program_id(1) * 3
    place, part = tl.load(places_ptr + token), tl.load(tile)
    first, end = tl.multiple_of(tl.load(tile + 1), ALIGNED), tl.multiple_of(tl.load(tile + 2), ALIGNED)
    has_adapter = (place > 0) & (place <= NUM_PLACES)
    ranks, outputs, splits = tl.arange(0, BLOCK_R), first + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_S)
    is_output, is_rank = has_adapter & (outputs < end), ranks < RANK
    b_at = b_ptr + (place - 1) * (RANK * OUTPUTS) + ranks[:, None] * OUTPUTS + outputs[None, :]
    b = tl.load(b_at, mask=is_rank[:, None] & is_output[None, :], other=0.0)
    wait_for_inputs(DEPENDENT)
    y_at = y_ptr + token * y_stride + outputs
    y = tl.load(y_at, mask=is_output, other=0.0)
    sums_at = sums_ptr + (token * SPLITS + splits[:, None]) * R + part * RANK + ranks[None, :]
    is_sum = has_adapter & (splits < SPLITS)[:, None] & is_rank[None, :]
    inner = tl.sum(tl.load(sums_at, mask=is_sum, other=0.0), axis=0)
    added = tl.sum(b.to(tl.float32) * inner[:, None], axis=0)
    tl.store(y_at, (y.to(tl.float32) + added).to(y.dtype), mask=is_output)
