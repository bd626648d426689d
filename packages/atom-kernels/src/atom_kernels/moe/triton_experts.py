"""The two products of the chosen experts in Triton, and the sum of what they make of a token.

A *pair* is a token and one of its experts; pair p belongs to token ``p // K``. E: experts, D: hidden size, I:
intermediate size. M, N and K of a tile: pairs, outputs, inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton_support import wait_for_inputs


@triton.jit(do_not_specialize=["num_pairs"])
def sort_pairs_kernel(
    ids_ptr,
    order_ptr,
    places_ptr,
    starts_ptr,
    num_pairs,
    NUM_EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Pairs by expert, each expert's in their own order: program e counts what comes before e, and places its own.

    `places`, the inverse of `order`, is left out where it is None.
    Every program reads all ids, from the L2 cache: cheaper than a second launch or atomics, and always the same order.
    """
    wait_for_inputs(DEPENDENT)
    expert = tl.program_id(0)
    before = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
        before += ((ids >= 0) & (ids < expert)).to(tl.int32)
    start = tl.sum(before, axis=0)
    tl.store(starts_ptr + expert, start)
    for first in range(0, num_pairs, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        own = (tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1) == expert).to(tl.int32)
        places = start + tl.cumsum(own, axis=0) - 1
        tl.store(order_ptr + places, pairs, mask=own > 0)
        if places_ptr is not None:
            tl.store(places_ptr + pairs, places, mask=own > 0)
        start += tl.sum(own, axis=0)
    if expert == NUM_EXPERTS - 1:
        tl.store(starts_ptr + NUM_EXPERTS, start)


@triton.jit(do_not_specialize=["num_pairs", "num_slots"])
def experts_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    ids_ptr,
    order_ptr,
    starts_ptr,
    num_pairs,
    num_slots,
    alpha,
    limit,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    BY_PAIR: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
):
    """``out[pair] = activation(weight[expert of pair] @ x[pair // PAIRS_PER_ROW] + bias)`` for one tile.

    x is [rows, DEPTH], weight [E, WIDTH, DEPTH]. With an activation the first half of an expert's rows is its gate and
    the second its up, and out has half as many columns; without one ("none") out has WIDTH columns.

    A program works in a *slot*, which has its pairs in one of two ways. With PAIRS_BLOCK > 0, at least the number of
    pairs, a slot is an expert (or with BY_PAIR the pair in which an expert is named first) and the program finds the
    expert's pairs by itself: a decode starts without a sort. Otherwise pairs are sorted: slot s is the s-th of all
    blocks of BLOCK_M pairs that have one expert.

    It is not launched while its predecessor runs: programs that wait would take places on processors, and those that
    work would be shared out unevenly.
    """
    num_tiles: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (GROUP_M * num_tiles)
    group_size = tl.minimum(num_slots - group * GROUP_M, GROUP_M)
    within = tl.program_id(0) % (GROUP_M * num_tiles)
    slot, tile = group * GROUP_M + within % group_size, within // group_size

    if PAIRS_BLOCK > 0:
        pairs_P = tl.arange(0, PAIRS_BLOCK)
        ids_P = tl.load(ids_ptr + pairs_P, mask=pairs_P < num_pairs, other=-1)
        expert = slot
        if BY_PAIR:
            expert = tl.load(ids_ptr + slot)
        own_P = ids_P == expert
        rank_P = tl.cumsum(own_P.to(tl.int32), axis=0) - 1
        first, last = 0, tl.sum(own_P.to(tl.int32), axis=0)
        if BY_PAIR:
            named_before = tl.min(tl.where(own_P, pairs_P, PAIRS_BLOCK), axis=0) < slot
            last = tl.where(named_before | (expert < 0) | (expert >= NUM_EXPERTS), 0, last)
    else:
        experts_E = tl.arange(0, EXPERTS_BLOCK)
        here_E = experts_E < NUM_EXPERTS
        starts_E = tl.load(starts_ptr + experts_E, mask=here_E, other=0)
        ends_E = tl.load(starts_ptr + experts_E + 1, mask=here_E, other=0)
        blocks_E = (ends_E - starts_E + BLOCK_M - 1) // BLOCK_M
        total_E = tl.cumsum(blocks_E, axis=0)
        expert = tl.minimum(tl.sum((total_E <= slot).to(tl.int32), axis=0), NUM_EXPERTS - 1)
        block = slot - tl.sum(tl.where(experts_E < expert, blocks_E, 0), axis=0)
        first = tl.load(starts_ptr + expert) + block * BLOCK_M
        last = tl.minimum(first + BLOCK_M, tl.load(starts_ptr + expert + 1))

    # Rows of gate and up take turns in a tile, so that both halves of a product meet in one thread.
    columns_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_rows_N = columns_N
    if ACTIVATION != "none":
        weight_rows_N = (columns_N % 2) * (WIDTH // 2) + columns_N // 2
    # A tile past the end computes its last row again instead of masking every load.
    weight_rows_N = tl.where(columns_N < WIDTH, weight_rows_N, WIDTH - 1)
    weight_ptrs_N = weight_ptr + expert.to(tl.int64) * (WIDTH * DEPTH) + weight_rows_N * DEPTH

    for start in range(first, last, BLOCK_M):
        places_M = start + tl.arange(0, BLOCK_M)
        if PAIRS_BLOCK > 0:
            found_MP = own_P[None, :] & (rank_P[None, :] == places_M[:, None])
            pairs_M = tl.sum(tl.where(found_MP, pairs_P[None, :], 0), axis=1)
        else:
            pairs_M = tl.load(order_ptr + places_M, mask=places_M < last, other=0)
        x_ptrs_M = x_ptr + (pairs_M // PAIRS_PER_ROW).to(tl.int64) * DEPTH
        sum_MN = tile_product(x_ptrs_M, weight_ptrs_N, DEPTH, BLOCK_M, BLOCK_N, BLOCK_K, SWAP, UPCAST)
        if HAS_BIAS:
            sum_MN += tl.load(bias_ptr + expert * WIDTH + weight_rows_N).to(tl.float32)[None, :]
        inside_M = (places_M < last)[:, None]
        if ACTIVATION == "none":
            out_ptrs_MN = out_ptr + pairs_M.to(tl.int64)[:, None] * WIDTH + columns_N[None, :]
            tl.store(out_ptrs_MN, sum_MN.to(out_ptr.dtype.element_ty), mask=inside_M & (columns_N < WIDTH)[None, :])
        else:
            gate_MH, up_MH = tl.split(tl.reshape(sum_MN, (BLOCK_M, BLOCK_N // 2, 2)))
            out_MH = gated(gate_MH, up_MH, alpha, limit, ACTIVATION)
            columns_H = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            out_ptrs_MH = out_ptr + pairs_M.to(tl.int64)[:, None] * (WIDTH // 2) + columns_H[None, :]
            inside_MH = inside_M & (columns_H < WIDTH // 2)[None, :]
            tl.store(out_ptrs_MH, out_MH.to(out_ptr.dtype.element_ty), mask=inside_MH)


@triton.jit
def tile_product(
    x_ptrs_M,
    weight_ptrs_N,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Rows times weights, float32 [BLOCK_M, BLOCK_N]. SWAP lets weights be the long side of the tensor core's tile."""
    if SWAP:
        sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    inputs_K = tl.arange(0, BLOCK_K)
    for depth in range(0, DEPTH, BLOCK_K):
        if DEPTH % BLOCK_K == 0:
            x_MK = tl.load(x_ptrs_M[:, None] + (depth + inputs_K)[None, :])
            weight_NK = tl.load(weight_ptrs_N[:, None] + (depth + inputs_K)[None, :])
        else:
            inside_K = (depth + inputs_K < DEPTH)[None, :]
            x_MK = tl.load(x_ptrs_M[:, None] + (depth + inputs_K)[None, :], mask=inside_K, other=0.0)
            weight_NK = tl.load(weight_ptrs_N[:, None] + (depth + inputs_K)[None, :], mask=inside_K, other=0.0)
        if UPCAST:
            x_MK, weight_NK = x_MK.to(tl.float32), weight_NK.to(tl.float32)
        if SWAP:
            sum_NM = tl.dot(weight_NK, tl.trans(x_MK), sum_NM, input_precision="ieee")
        else:
            sum_MN = tl.dot(x_MK, tl.trans(weight_NK), sum_MN, input_precision="ieee")
    if SWAP:
        sum_MN = tl.trans(sum_NM)
    return sum_MN


@triton.jit
def gated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """The activation between the products, in float32."""
    if ACTIVATION == "swiglu_oai":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        return gate / (1.0 + tl.exp(-alpha * gate)) * up
    else:
        return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def activation_kernel(
    sums_ptr,
    bias_ptr,
    out_ptr,
    order_ptr,
    ids_ptr,
    num_sorted_ptr,
    alpha,
    limit,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """``out[r] = activation(sums[r] + bias[expert of r])`` for sorted rows; sums and bias have gate and then up."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < WIDTH) & (row < tl.load(num_sorted_ptr))
    gate = tl.load(sums_ptr + row * 2 * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(sums_ptr + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        expert = tl.load(ids_ptr + tl.load(order_ptr + row))
        gate += tl.load(bias_ptr + expert * 2 * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + expert * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    out = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(out_ptr + row * WIDTH + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


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
):
    """``out[t] = sum over k of weights[t, k] * (partial + bias) + base[t]``, in this order; strangers add nothing.

    The partial result of pair ``t * K + k`` lies in its own row, or in row ``places[pair]``; bias is [E, WIDTH], and it
    and base may be None.
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
        partial = tl.load(partial_ptr + row * WIDTH + columns, mask=inside & here, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            partial += tl.load(bias_ptr + expert * WIDTH + columns, mask=inside & here, other=0.0).to(tl.float32)
        total += tl.load(weights_ptr + pair) * partial
    if base_ptr is not None:
        total += tl.load(base_ptr + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * WIDTH + columns, total.to(out_ptr.dtype.element_ty), mask=inside)
