"""RMS norm, residual add + RMS norm, and layer norm in Triton: one program a row, the row held in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, eps, offset, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    tl.store(out_ptr + row + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, eps, offset,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    # What is carried on is what is normed: the sum is rounded first.
    rounded = (x + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row + columns, rounded, mask=inside)
    total = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / SIZE + eps)
    tl.store(out_ptr + row + columns, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated_rms_norm_kernel(
    x_ptr, gate_ptr, weight_ptr, out_ptr, gate_stride, eps,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[rows, blocks of groups]``; rows of the gates are `gate_stride` elements apart."""
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    inside = (groups < GROUPS) & (columns < SIZE)
    at = groups * SIZE + columns
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row * (GROUPS * SIZE) + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / SIZE + eps)
    normed = (x * scale[:, None] * weight).to(out_ptr.dtype.element_ty).to(tl.float32)
    out = normed * gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + row * (GROUPS * SIZE) + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, eps, offset,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Without a bias, `bias_ptr` is None."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, x - tl.sum(x, axis=0) / SIZE, 0.0)
    out = centered / tl.sqrt(tl.sum(centered * centered, axis=0) / SIZE + eps) * weight
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + columns, out.to(out_ptr.dtype.element_ty), mask=inside)
