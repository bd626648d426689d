"""Rotation, cache write and scores of a lightning index in Triton.

Shapes: T tokens, H index heads, D head_dim, N keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.prologue import load_angles, norm_and_rotate, store_halves
from atom_kernels.attention.triton.tile import load_block_ids
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def index_prologue_kernel(
    q_ptr, k_ptr, q_out_ptr, cache_ptr, slot_mapping_ptr, positions_ptr, cos_sin_ptr,
    q_stride, k_stride, block_stride, token_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a token and `BLOCK_H` heads, which go to q_out ``[T, H, D]``; the last writes the token's key."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    num_parts: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    # Written before the step's first layer.
    cos, sin = load_angles(positions_ptr, cos_sin_ptr, token, ROTARY_DIM, BLOCK_D)
    slot = tl.load(slot_mapping_ptr + token)
    wait_for_inputs(DEPENDENT)
    if part < num_parts:
        heads = part * BLOCK_H + tl.arange(0, BLOCK_H)
        q, q_partners = norm_and_rotate(
            q_ptr + token * q_stride, heads, heads < NUM_HEADS, None, 0.0, cos, sin,
            HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
        )  # fmt: skip
        rows = q_out_ptr + (token * NUM_HEADS + heads) * HEAD_DIM
        store_halves(rows, q, q_partners, heads < NUM_HEADS, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)
    else:
        if slot >= 0:
            one = tl.arange(0, 1)
            k, k_partners = norm_and_rotate(
                k_ptr + token * k_stride, one, one == 0, None, 0.0, cos, sin,
                HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
            )  # fmt: skip
            row = cache_ptr + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride
            store_halves(row + one, k, k_partners, one == 0, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["first_row", "table_stride", "table_width", "scores_stride"],
    do_not_specialize_on_alignment=["requests_ptr", "visible_ptr", "block_table_ptr"],
)
def index_scores_kernel(
    q_ptr, head_weights_ptr, cache_ptr, scores_ptr, requests_ptr, visible_ptr, block_table_ptr,
    scale, first_row, head_weights_stride, block_stride, token_stride, table_stride, table_width, scores_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOP_K: tl.constexpr,
    TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    UPCAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program TILES tiles of keys and a row, counted from `first_row`; rows with TOP_K keys or fewer need none."""
    row = tl.program_id(1)
    token = (first_row + row).to(tl.int64)
    # Lengths and tables were written before the step's first layer: these loads need not wait for inputs.
    visible = tl.load(visible_ptr + token)
    begin = tl.program_id(0) * (TILES * BLOCK_N)
    if (visible > TOP_K) & (begin < visible):
        table = block_table_ptr + tl.load(requests_ptr + token).to(tl.int64) * table_stride
        heads, columns = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
        in_heads, in_columns = heads < NUM_HEADS, columns < HEAD_DIM
        block_ids = load_block_ids(table, begin, table_width, BLOCK_SIZE, BLOCK_N)
        wait_for_inputs(DEPENDENT)
        q_at = q_ptr + (token * NUM_HEADS + heads[:, None]) * HEAD_DIM + columns[None, :]
        q = tl.load(q_at, mask=in_heads[:, None] & in_columns[None, :], other=0.0)
        head_weights = tl.load(head_weights_ptr + token * head_weights_stride + heads, mask=in_heads, other=0.0)
        head_weights = head_weights.to(tl.float32) * scale
        if UPCAST:
            q = q.to(tl.float32)
        for at in range(begin, tl.minimum(begin + TILES * BLOCK_N, visible), BLOCK_N):
            n = at + tl.arange(0, BLOCK_N)
            keys = cache_ptr + block_ids.to(tl.int64) * block_stride + n % BLOCK_SIZE * token_stride
            inside = (n < visible)[:, None] & in_columns[None, :]
            k = tl.load(keys[:, None] + columns[None, :], mask=inside, other=0.0)
            # Read a tile ahead: a load whose address waits for another load takes twice the pipeline stages.
            block_ids = load_block_ids(table, at + BLOCK_N, table_width, BLOCK_SIZE, BLOCK_N)
            if UPCAST:
                k = k.to(tl.float32)
            products = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.sum(tl.maximum(products, 0.0) * head_weights[:, None], axis=0)
            tl.store(scores_ptr + row.to(tl.int64) * scores_stride + n, scores, mask=n < visible)
