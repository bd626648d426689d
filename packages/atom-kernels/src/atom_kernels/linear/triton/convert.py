"""Triton kernels that make one number format of another: rows of activations to fp8, packed weights to plain ones."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.linear.triton.codes import PLANE, TILE, codes_of, decode, has_offset, scale_of
from atom_kernels.triton.support import wait_for_inputs

# Rows of the weight that a program makes plain.
NUM_ROWS = tl.constexpr(32)


@triton.jit
def round_rows_kernel(
    x_ptr, norm_weight_ptr, out_ptr, scale_ptr, x_stride, scale_stride, group_stride, eps, norm_offset,
    SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Each row, normed first where there is a norm, as ``float8_e4m3fn * scale`` with a scale for each GROUP of it.

    A program holds a row in registers. BLOCK and GROUP are powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    if norm_weight_ptr is not None:
        weight = tl.load(norm_weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + norm_offset
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if norm_weight_ptr is not None:
        x = x * weight / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    num_groups: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    groups = tl.arange(0, BLOCK // GROUP)
    x = tl.reshape(x, (BLOCK // GROUP, GROUP))
    largest = tl.max(tl.abs(x), axis=1)
    scale = tl.where(largest > 0.0, largest / 448.0, 1.0)
    rounded = tl.reshape(tl.clamp(x / scale[:, None], -448.0, 448.0), (BLOCK,))
    tl.store(out_ptr + row * SIZE + columns, rounded.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row * scale_stride + groups * group_stride, scale, mask=groups < num_groups)


@triton.jit
def make_plain_kernel(
    codes_ptr, scale_ptr, minimum_ptr, out_ptr, K: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
    GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    """One tile of `BLOCK_N` rows and `TILE` inputs of the weight, in the dtype of `out`."""
    is_planar: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    rows = tl.program_id(0) * NUM_ROWS + tl.arange(0, NUM_ROWS)
    inside_rows = rows < ROWS
    rows = tl.where(inside_rows, rows, 0)
    first = tl.program_id(1) * TILE
    words = tl.zeros([NUM_ROWS, PLANE], tl.int16)
    if is_planar:
        words = codes_of(codes_ptr, rows, first, K, True, False, PLANE)
    for plane in tl.static_range(TILE // PLANE):
        at = first + plane * PLANE
        columns = at + tl.arange(0, PLANE)
        codes = words if is_planar else codes_of(codes_ptr, rows, at, K, False, False, PLANE)
        weight = decode(codes, plane, KIND, has_offset(scale_ptr, minimum_ptr, KIND))
        group = tl.minimum(columns, K - 1)[None, :] // GROUP if GROUP < PLANE else tl.minimum(at, K - 1) // GROUP
        scale, minimum = scale_of(scale_ptr, minimum_ptr, rows[:, None], group, K, KIND, GROUP, GROUP_ROWS)
        weight = weight * scale + minimum
        inside = inside_rows[:, None] & (columns < K)[None, :]
        tl.store(
            out_ptr + rows[:, None].to(tl.int64) * K + columns[None, :],
            weight.to(out_ptr.dtype.element_ty),
            mask=inside,
        )
