"""Attention of encoders in Triton: tiles of a text's queries against tiles of its keys, before and behind them.

Shapes: T tokens, R texts, H heads, D head_dim; M queries of a tile, N keys of a tile. Scores are kept in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.prologue import load_angles, norm_and_rotate, store_halves
from atom_kernels.attention.triton.tile import NOTHING


@triton.jit
def _load_rows(
    rows_ptr, tokens, present, stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Rows of one head ``[*, D]``, of which some (MASKED) and some columns may be absent: zeros."""
    columns = tl.arange(0, BLOCK_D)
    at = rows_ptr + tokens.to(tl.int64)[:, None] * stride + columns[None, :]
    if MASKED and HEAD_DIM == BLOCK_D:
        x = tl.load(at, mask=present[:, None], other=0.0)
    elif MASKED:
        x = tl.load(at, mask=present[:, None] & (columns < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM == BLOCK_D:
        x = tl.load(at)
    else:
        x = tl.load(at, mask=(columns < HEAD_DIM)[None, :], other=0.0)
    return x.to(tl.float32) if UPCAST else x


@triton.jit
def _attend_tile(
    q, k_ptr, v_ptr, k_stride, v_stride, start, at, length, queries, best, total, sums, scale,
    HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Keys ``at:at + N`` of a text folded into each row's maximum, sum of exponentials and sums of values.

    MASKED: some keys lie behind the text's end, or are none that a row sees; otherwise nothing is checked.
    """
    n = at + tl.arange(0, BLOCK_N)
    k = _load_rows(k_ptr, start + n, n < length, k_stride, HEAD_DIM, BLOCK_D, MASKED, UPCAST)
    v = _load_rows(v_ptr, start + n, n < length, v_stride, HEAD_DIM, BLOCK_D, MASKED, UPCAST)
    # Exact products in float32, as the contract's; other dtypes have one kind.
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        seen = (n < length)[None, :] & (queries >= 0)[:, None]
        if WINDOW > 0:
            seen &= tl.abs(queries[:, None] - n[None, :]) <= WINDOW
        if CAUSAL:
            seen &= n[None, :] <= queries[:, None]
        scores = tl.where(seen, scores, NOTHING)
    higher = tl.maximum(best, tl.max(scores, axis=1) * scale)
    # Scaled here and not before: the product and the difference are one instruction.
    weights = tl.exp2(scores * scale - higher[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = weights.to(DTYPE)
    if UPCAST:
        weights = weights.to(tl.float32)
    return higher, total, tl.dot(weights, v, sums * shrink[:, None], input_precision="ieee")


# What changes from step to step must not make Triton compile again.
@triton.jit(do_not_specialize=["num_texts"], do_not_specialize_on_alignment=["query_start_loc_ptr"])
def encoder_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, query_start_loc_ptr, scale,
    q_stride, k_stride, v_stride, num_texts,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program a head and tile of at most `BLOCK_M` queries of one text. WINDOW 0 sees whole texts.

    Tiles are numbered through the batch, leaving room for one unfinished tile a text, so that a grid is known from
    the numbers of tokens and texts alone. Tiles of keys are counted from the text's own start: which keys are summed
    together does not depend on its neighbors.
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    # The text of a tile: the last whose first tile is not past it.
    text = -1
    for first in range(0, num_texts, BLOCK_R):
        texts = first + tl.arange(0, BLOCK_R)
        inside = texts < num_texts
        starts = tl.load(query_start_loc_ptr + texts, mask=inside, other=0)
        text += tl.sum(((starts // BLOCK_M + texts <= tile) & inside).to(tl.int32), axis=0)
    start = tl.load(query_start_loc_ptr + text)
    length = tl.load(query_start_loc_ptr + text + 1) - start
    first_query = (tile - start // BLOCK_M - text) * BLOCK_M
    if first_query < length:
        dtype = q_ptr.dtype.element_ty
        queries = first_query + tl.arange(0, BLOCK_M)
        present = queries < length
        q = _load_rows(
            q_ptr + head * HEAD_DIM, start + queries, present, q_stride, HEAD_DIM, BLOCK_D, True, UPCAST
        )  # fmt: skip
        k_ptr += head * HEAD_DIM
        v_ptr += head * HEAD_DIM
        best = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        masked, end = 0, length
        if WINDOW > 0:
            masked = tl.maximum(first_query - WINDOW, 0) // BLOCK_N * BLOCK_N
            end = tl.minimum(first_query + BLOCK_M + (0 if CAUSAL else WINDOW), length)
        else:
            if CAUSAL:
                end = tl.minimum(first_query + BLOCK_M, length)
            # The first one of causal rows sees the fewest keys.
            masked = tl.minimum(first_query, length) // BLOCK_N * BLOCK_N if CAUSAL else length // BLOCK_N * BLOCK_N
            for at in range(0, masked, BLOCK_N):
                best, total, sums = _attend_tile(
                    q, k_ptr, v_ptr, k_stride, v_stride, start, at, length, queries, best, total, sums, scale,
                    HEAD_DIM, WINDOW, CAUSAL, UPCAST, False, BLOCK_N, BLOCK_D, dtype,
                )  # fmt: skip
        for at in range(masked, end, BLOCK_N):
            best, total, sums = _attend_tile(
                q, k_ptr, v_ptr, k_stride, v_stride, start, at, length, queries, best, total, sums, scale,
                HEAD_DIM, WINDOW, CAUSAL, UPCAST, True, BLOCK_N, BLOCK_D, dtype,
            )  # fmt: skip
        columns = tl.arange(0, BLOCK_D)
        rows = out_ptr + (start + queries).to(tl.int64) * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM
        out = sums / tl.where(total > 0.0, total, 1.0)[:, None]
        inside = present[:, None] & (columns < HEAD_DIM)[None, :]
        tl.store(rows[:, None] + columns[None, :], out.to(dtype), mask=inside)


@triton.jit
def encoder_prologue_kernel(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, positions_ptr, cos_sin_ptr, q_norm_ptr, k_norm_ptr, norm_eps,
    q_stride, k_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Norms and rotates a token's queries and keys into ``[T, H, D]``; see `load_angles` and `norm_and_rotate`."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, BLOCK_H)
    present = heads < NUM_HEADS
    cos, sin = load_angles(positions_ptr, cos_sin_ptr, token, ROTARY_DIM, BLOCK_D)
    at = token * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
    q, q_partners = norm_and_rotate(
        q_ptr + token * q_stride, heads, present, q_norm_ptr, norm_eps, cos, sin,
        HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
    )  # fmt: skip
    store_halves(q_out_ptr + at, q, q_partners, present, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)
    k, k_partners = norm_and_rotate(
        k_ptr + token * k_stride, heads, present, k_norm_ptr, norm_eps, cos, sin,
        HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
    )  # fmt: skip
    store_halves(k_out_ptr + at, k, k_partners, present, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)
