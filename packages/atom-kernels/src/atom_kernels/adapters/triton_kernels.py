"""What adapters add, in Triton: the products with A, then those with B.

Shapes: T tokens, I inputs, O outputs, R rows of A, of which RANK belong to one part of the outputs. No program knows of
other tokens than its own, so that a result does not depend on the batch. Matrices do not depend on other kernels, and
places were written by a plain launch: both are read while the kernel before still runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit(do_not_specialize=["norm_offset"])
def shrink_kernel(
    x_ptr, places_ptr, a_ptr, norm_weight_ptr, inner_ptr, x_stride, norm_offset,
    NUM_PLACES: tl.constexpr, INPUTS: tl.constexpr, R: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[T, blocks of R]``: ``inner[T, R] = A (x * norm weight)``, the weight where there is one."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + token)
    has_adapter = (place > 0) & (place <= NUM_PLACES)
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    is_row = has_adapter & (rows < R)
    a_at = a_ptr + (place - 1) * (R * INPUTS) + rows * INPUTS
    a = _load_a(a_at, is_row, 0, INPUTS, BLOCK_I)
    wait_for_inputs(DEPENDENT)
    x_at = x_ptr + token * x_stride
    sums = a.to(tl.float32) * _load_x(x_at, norm_weight_ptr, norm_offset, has_adapter, 0, INPUTS, BLOCK_I)[None, :]
    for first in tl.static_range(BLOCK_I, INPUTS, BLOCK_I):
        a = _load_a(a_at, is_row, first, INPUTS, BLOCK_I).to(tl.float32)
        sums += a * _load_x(x_at, norm_weight_ptr, norm_offset, has_adapter, first, INPUTS, BLOCK_I)[None, :]
    tl.store(inner_ptr + token * R + rows, tl.sum(sums, axis=1), mask=is_row)


@triton.jit
def _load_a(a_at, is_row, first, INPUTS: tl.constexpr, BLOCK_I: tl.constexpr):
    columns = first + tl.arange(0, BLOCK_I)
    return tl.load(a_at[:, None] + columns[None, :], mask=is_row[:, None] & (columns < INPUTS)[None, :], other=0.0)


@triton.jit
def _load_x(x_at, norm_weight_ptr, norm_offset, has_adapter, first, INPUTS: tl.constexpr, BLOCK_I: tl.constexpr):
    columns = first + tl.arange(0, BLOCK_I)
    mask = has_adapter & (columns < INPUTS)
    x = tl.load(x_at + columns, mask=mask, other=0.0).to(tl.float32)
    if norm_weight_ptr is not None:
        x *= tl.load(norm_weight_ptr + columns, mask=mask, other=0.0).to(tl.float32) + norm_offset
    return x


@triton.jit
def expand_kernel(
    y_ptr, inner_ptr, places_ptr, b_ptr, tiles_ptr, y_stride,
    NUM_PLACES: tl.constexpr, OUTPUTS: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[T, tiles]``: ``y += B inner`` over a tile's outputs, which belong to one part.

    `tiles_ptr` has int32 ``[tiles, 3]``: the part, the first output and the part's end, multiples of ALIGNED.
    """
    token, tile = tl.program_id(0).to(tl.int64), tiles_ptr + tl.program_id(1) * 3
    place, part = tl.load(places_ptr + token), tl.load(tile)
    first, end = tl.multiple_of(tl.load(tile + 1), ALIGNED), tl.multiple_of(tl.load(tile + 2), ALIGNED)
    has_adapter = (place > 0) & (place <= NUM_PLACES)
    ranks, outputs = tl.arange(0, BLOCK_R), first + tl.arange(0, BLOCK_O)
    is_output, is_rank = has_adapter & (outputs < end), ranks < RANK
    b_at = b_ptr + (place - 1) * (RANK * OUTPUTS) + ranks[:, None] * OUTPUTS + outputs[None, :]
    b = tl.load(b_at, mask=is_rank[:, None] & is_output[None, :], other=0.0)
    wait_for_inputs(DEPENDENT)
    y_at = y_ptr + token * y_stride + outputs
    y = tl.load(y_at, mask=is_output, other=0.0)
    inner_at = inner_ptr + token * R + part * RANK + ranks
    inner = tl.load(inner_at, mask=has_adapter & is_rank, other=0.0)
    added = tl.sum(b.to(tl.float32) * inner[:, None], axis=0)
    tl.store(y_at, (y.to(tl.float32) + added).to(y.dtype), mask=is_output)
