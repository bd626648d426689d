"""The chosen experts of very few tokens in Triton: products with single rows, without tensor cores, in two launches.

A *pair* is a token and one of its experts; pair p belongs to token ``p // K``. N: outputs and I: inputs of a tile; R:
outputs of all experts of a token, those of one after those of another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.moe.triton_rows import gated


@triton.jit
def gate_up_of_pair_kernel(
    x_ptr, weight_ptr, bias_ptr, ids_ptr, out_ptr, alpha, limit,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """``out[pair] = activation(gate @ x[token], up @ x[token])``; weight [E, 2 * SIZE, DEPTH], gate before up."""
    pair = tl.program_id(1)
    expert = tl.load(ids_ptr + pair)
    columns_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if (expert >= 0) & (expert < NUM_EXPERTS):
        rows_N = tl.where(columns_N < SIZE, columns_N, 0)
        gate_ptrs_N = weight_ptr + expert.to(tl.int64) * (2 * SIZE * DEPTH) + rows_N * DEPTH
        gate_NI = tl.zeros([BLOCK_N, BLOCK_I], tl.float32)
        up_NI = tl.zeros([BLOCK_N, BLOCK_I], tl.float32)
        for depth in range(0, DEPTH, BLOCK_I):
            inputs_I = depth + tl.arange(0, BLOCK_I)
            inside_I = (inputs_I < DEPTH)[None, :]
            x_I = tl.load(x_ptr + (pair // TOP_K) * DEPTH + inputs_I[None, :], mask=inside_I, other=0.0).to(tl.float32)
            at_NI = gate_ptrs_N[:, None] + inputs_I[None, :]
            gate_NI += tl.load(at_NI, mask=inside_I, other=0.0).to(tl.float32) * x_I
            up_NI += tl.load(at_NI + SIZE * DEPTH, mask=inside_I, other=0.0).to(tl.float32) * x_I
        gate_N, up_N = tl.sum(gate_NI, axis=1), tl.sum(up_NI, axis=1)
        if bias_ptr is not None:
            gate_N += tl.load(bias_ptr + expert * 2 * SIZE + rows_N).to(tl.float32)
            up_N += tl.load(bias_ptr + expert * 2 * SIZE + SIZE + rows_N).to(tl.float32)
        out_N = gated(gate_N, up_N, alpha, limit, ACTIVATION)
        tl.store(out_ptr + pair * SIZE + columns_N, out_N.to(out_ptr.dtype.element_ty), mask=columns_N < SIZE)


@triton.jit
def down_of_token_kernel(
    hidden_ptr, weight_ptr, bias_ptr, weights_ptr, ids_ptr, base_ptr, out_ptr,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, TOP_K_BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """``out[token] = sum over k of weights[token, k] * (weight @ hidden[pair]) + base[token]``.

    weight [E, WIDTH, DEPTH], hidden [pairs, DEPTH]; bias [E, WIDTH] and base [tokens, WIDTH] may be None.

    All experts of the token are read at once, so that enough is on its way from memory.
    """
    token = tl.program_id(1)
    rows_R = tl.arange(0, TOP_K_BLOCK * BLOCK_N)
    slots_R = rows_R // BLOCK_N
    pairs_R = token * TOP_K + slots_R
    experts_R = tl.load(ids_ptr + pairs_R, mask=slots_R < TOP_K, other=-1)
    here_R = (experts_R >= 0) & (experts_R < NUM_EXPERTS)
    columns_R = tl.program_id(0) * BLOCK_N + rows_R % BLOCK_N
    inside_R = here_R & (columns_R < WIDTH)
    weight_ptrs_R = weight_ptr + experts_R.to(tl.int64) * (WIDTH * DEPTH) + columns_R * DEPTH
    sums_RI = tl.zeros([TOP_K_BLOCK * BLOCK_N, BLOCK_I], tl.float32)
    for depth in range(0, DEPTH, BLOCK_I):
        inputs_I = depth + tl.arange(0, BLOCK_I)
        inside_RI = inside_R[:, None] & (inputs_I < DEPTH)[None, :]
        hidden_RI = tl.load(hidden_ptr + pairs_R[:, None] * DEPTH + inputs_I[None, :], mask=inside_RI, other=0.0)
        weight_RI = tl.load(weight_ptrs_R[:, None] + inputs_I[None, :], mask=inside_RI, other=0.0)
        sums_RI += weight_RI.to(tl.float32) * hidden_RI.to(tl.float32)
    sums_R = tl.sum(sums_RI, axis=1)
    if bias_ptr is not None:
        sums_R += tl.load(bias_ptr + experts_R * WIDTH + columns_R, mask=inside_R, other=0.0).to(tl.float32)
    sums_R *= tl.load(weights_ptr + pairs_R, mask=here_R, other=0.0)
    out_N = tl.sum(tl.reshape(sums_R, (TOP_K_BLOCK, BLOCK_N)), axis=0)
    columns_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_N = columns_N < WIDTH
    if base_ptr is not None:
        out_N += tl.load(base_ptr + token * WIDTH + columns_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * WIDTH + columns_N, out_N.to(out_ptr.dtype.element_ty), mask=inside_N)
