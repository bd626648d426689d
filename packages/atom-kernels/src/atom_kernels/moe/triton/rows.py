"""The Triton kernels before, between and after the experts' products.

A *pair* is a token and one of its experts; pair p belongs to token ``p // K``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.activation.triton_kernels import gated
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def spread_kernel(
    x_ptr, places_ptr, ids_ptr, out_ptr,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out[places[p]] = x[p // K]`` for each pair of an expert: a token's row is read once."""
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    row = tl.load(x_ptr + token * WIDTH + columns, mask=inside, other=0.0)
    for k in tl.static_range(TOP_K):
        expert = tl.load(ids_ptr + token * TOP_K + k)
        here = (expert >= 0) & (expert < NUM_EXPERTS)
        place = tl.load(places_ptr + token * TOP_K + k, mask=here, other=0).to(tl.int64)
        tl.store(out_ptr + place * WIDTH + columns, row, mask=inside & here)


@triton.jit
def activation_kernel(
    sums_ptr, bias_ptr, out_ptr, order_ptr, ids_ptr, num_sorted_ptr, alpha, limit,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out[r] = activation(sums[r] + bias[expert of r])`` for sorted rows; sums and bias have gate and then up.

    A program has ROWS of them, and the order may be None where there is no bias.
    """
    wait_for_inputs(DEPENDENT)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_row = rows < tl.load(num_sorted_ptr)
    inside = is_row & (columns < WIDTH)
    gates = rows * 2 * WIDTH + columns
    gate = tl.load(sums_ptr + gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(sums_ptr + gates + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        experts = tl.load(ids_ptr + tl.load(order_ptr + rows, mask=is_row, other=0), mask=is_row, other=0)
        gates = experts.to(tl.int64) * 2 * WIDTH + columns
        gate += tl.load(bias_ptr + gates, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + gates + WIDTH, mask=inside, other=0.0).to(tl.float32)
    out = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(out_ptr + rows * WIDTH + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def combine_kernel(
    partial_ptr,
    bias_ptr,
    places_ptr,
    weights_ptr,
    ids_ptr,
    base_ptr,
    out_ptr,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr,
):
    """``out[t] = sum over k of weights[t, k] * (partial + bias) + base[t]``, in this order; ids of no expert add 0.

    The partial result of pair ``t * K + k`` lies in its own row, or in row ``places[pair]``, or is the sum of PARTS
    rows of its own; bias is [E, WIDTH], and it and base may be None.
    """
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(TOP_K):
        pair = token * TOP_K + k
        expert = tl.load(ids_ptr + pair)
        here = (expert >= 0) & (expert < NUM_EXPERTS)
        row = pair
        if places_ptr is not None:
            row = tl.load(places_ptr + pair, mask=here, other=0).to(tl.int64)
        partial = tl.zeros([BLOCK], tl.float32)
        for part in tl.static_range(PARTS):
            at = partial_ptr + (row * PARTS + part) * WIDTH + columns
            partial += tl.load(at, mask=inside & here, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            partial += tl.load(bias_ptr + expert * WIDTH + columns, mask=inside & here, other=0.0).to(tl.float32)
        total += tl.load(weights_ptr + pair) * partial
    if base_ptr is not None:
        total += tl.load(base_ptr + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * WIDTH + columns, total.to(out_ptr.dtype.element_ty), mask=inside)
