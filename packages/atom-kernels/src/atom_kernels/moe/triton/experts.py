"""The two products of the chosen experts in Triton.

A *pair* is a token and one of its experts; pair p belongs to token ``p // K``. E: experts; M, N and K of a tile: pairs,
outputs, inputs; P: all pairs; H: half of N.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.activation.triton_kernels import gated
from atom_kernels.linear.triton.codes import PLANE, TILE
from atom_kernels.linear.triton.packed import packed_products
from atom_kernels.moe.triton.fragments import ROWS, WORDS, fragment_product
from atom_kernels.moe.triton.pairs import pairs_of_slot, sorted_block_of_slot

# Past the rows of every x.
NO_ROW = tl.constexpr(2**40)


@triton.jit(do_not_specialize=["num_pairs", "num_slots"])
def experts_kernel(
    x_ptr,
    x_scale_ptr,
    weight_ptr,
    scale_ptr,
    minimum_ptr,
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
    PRECISION: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
    PARTS: tl.constexpr,
    ONE_TOKEN: tl.constexpr,
):
    """``out[pair] = activation(weight[expert of pair] @ x[pair // PAIRS_PER_ROW] + bias)`` for one tile.

    x is [rows, DEPTH], weight [E, WIDTH, DEPTH]: "plain", or codes of another KIND (see `linear.triton.codes`) with
    their scale and perhaps minimum; rows of x in fp8 have scales too. With an activation the first half of an expert's
    rows is its gate and the second its up, and out has half as many columns; without one ("none") it has WIDTH.

    A program works in a *slot*, which has its pairs in one of three ways. With PAIRS_BLOCK = 1 a slot is a pair: those
    of one token share no expert. With more, at least the number of pairs, a slot is an expert (or with BY_PAIR the pair
    in which an expert is named first) and the program finds the expert's pairs by itself: a decode starts without a
    sort. Otherwise pairs are sorted: slot s is the s-th of all blocks of BLOCK_M pairs that have one expert.

    With one token (ONE_TOKEN) a slot may be one of PARTS of a pair's inputs, each of which has a row of out.

    It is not launched while its predecessor runs: programs that wait would take places on processors, and those that
    work would be shared out unevenly.
    """
    num_tiles: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (GROUP_M * num_tiles)
    group_size = tl.minimum(num_slots - group * GROUP_M, GROUP_M)
    within = tl.program_id(0) % (GROUP_M * num_tiles)
    slot, tile = group * GROUP_M + within % group_size, within // group_size

    slot, part = slot // PARTS, slot % PARTS
    if PAIRS_BLOCK == 1:
        expert, first = tl.load(ids_ptr + slot), 0
        last = ((expert >= 0) & (expert < NUM_EXPERTS)).to(tl.int32)
    elif PAIRS_BLOCK > 0:
        expert, rank_P, last = pairs_of_slot(ids_ptr, slot, num_pairs, NUM_EXPERTS, PAIRS_BLOCK, BY_PAIR)
        first = 0
    else:
        expert, first, last = sorted_block_of_slot(starts_ptr, slot, NUM_EXPERTS, EXPERTS_BLOCK, BLOCK_M)

    # Rows of gate and up take turns in a tile, so that both halves of a product meet in one thread.
    columns_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_rows_N = columns_N
    if ACTIVATION != "none":
        weight_rows_N = (columns_N % 2) * (WIDTH // 2) + columns_N // 2
    # A tile past the end computes its last row again instead of masking every load.
    weight_rows_N = tl.where(columns_N < WIDTH, weight_rows_N, WIDTH - 1)

    tiles: tl.constexpr = (DEPTH + TILE - 1) // TILE
    # Fragments have whole blocks of rows.
    num_rows: tl.constexpr = (WIDTH + ROWS - 1) // ROWS * ROWS if KIND == "e2m1" else WIDTH
    row_size: tl.constexpr = tiles * WORDS if KIND == "e2m1" else tiles * PLANE if KIND == "int4" else DEPTH
    weight_ptr += expert.to(tl.int64) * (num_rows * row_size)
    if HAS_BIAS:
        # Asked for before the weights, which take long; a slot without pairs may have no expert.
        bias_N = tl.load(bias_ptr + expert * WIDTH + weight_rows_N, mask=(columns_N >= 0) & (first < last), other=0.0)
    for start in range(first, last, BLOCK_M):
        places_M = start + tl.arange(0, BLOCK_M)
        # Places past the last pair compute it again: the row of any other pair may hold garbage.
        taken_M = tl.minimum(places_M, last - 1)
        if PAIRS_BLOCK == 1:
            pairs_M = slot + 0 * places_M
        elif PAIRS_BLOCK > 0:
            found_MP = rank_P[None, :] == taken_M[:, None]
            pairs_M = tl.sum(tl.where(found_MP, tl.arange(0, PAIRS_BLOCK)[None, :], 0), axis=1)
        else:
            pairs_M = tl.load(order_ptr + taken_M)
        x_rows_M = (pairs_M // PAIRS_PER_ROW).to(tl.int64)
        if KIND == "plain":
            weight_ptrs_N = weight_ptr + weight_rows_N * DEPTH
            sum_MN = tile_product(
                x_ptr + x_rows_M * DEPTH, weight_ptrs_N, DEPTH, BLOCK_M, BLOCK_N, BLOCK_K, SWAP, PRECISION == "ieee"
            )
        elif KIND == "e2m1":
            x_rows_M = tl.where(places_M < last, x_rows_M, NO_ROW)
            powers_ptr = scale_ptr + expert.to(tl.int64) * (num_rows * tiles)
            sum_NM = fragment_product(
                x_ptr, weight_ptr, powers_ptr, weight_rows_N, x_rows_M, NO_ROW, part, DEPTH, PRECISION, PARTS,
                ONE_TOKEN, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            sum_MN = tl.trans(sum_NM)
        else:
            x_rows_M = tl.where(places_M < last, x_rows_M, NO_ROW)
            sum_MN = packed_tile_product(
                x_ptr, x_scale_ptr, weight_ptr, scale_ptr, minimum_ptr, expert.to(tl.int64), weight_rows_N, x_rows_M,
                DEPTH, WIDTH, KIND, GROUP, GROUP_ROWS, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        if HAS_BIAS:
            sum_MN += tl.where(part == 0, bias_N.to(tl.float32), 0.0)[None, :]
        inside_M = (places_M < last)[:, None]
        if ACTIVATION == "none":
            out_rows_M = pairs_M.to(tl.int64) * PARTS + part
            out_ptrs_MN = out_ptr + out_rows_M[:, None] * WIDTH + columns_N[None, :]
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
def packed_tile_product(
    x_ptr, x_scale_ptr, codes_ptr, scale_ptr, minimum_ptr, expert, weight_rows_N, x_rows_M,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As `tile_product`, with an expert's codes and all experts' scales; rows of x that are `NO_ROW` are zeros."""
    scales_of_expert: tl.constexpr = (WIDTH + GROUP_ROWS - 1) // GROUP_ROWS * ((DEPTH + GROUP - 1) // GROUP)
    if minimum_ptr is not None:
        minimum_ptr += expert * scales_of_expert
    sum_NM, _, _ = packed_products(
        x_ptr, x_scale_ptr, codes_ptr, scale_ptr + expert * scales_of_expert, minimum_ptr, None, 0.0, weight_rows_N,
        weight_rows_N, x_rows_M, NO_ROW, DEPTH, 0,
        DEPTH, False, KIND, GROUP, GROUP_ROWS, PRECISION, (DEPTH + BLOCK_K - 1) // BLOCK_K, DEPTH % BLOCK_K == 0,
        BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    return tl.trans(sum_NM)
