"""Attention of few query tokens over pages in Triton: each program takes a range of tiles, see `schedule`.

Shapes: T tokens, H query heads, K key/value heads, D head_dim; M query rows (tokens x heads of a group), N keys of a
tile, P rows kept of a piece, C pieces merged at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.schedule import RANGE_FIELDS, REQUEST_FIELDS
from atom_kernels.attention.triton.tile import (
    NOTHING,
    UNSCALED,
    attend_tile,
    head_factors,
    load_block_ids,
    load_queries,
    no_sums,
    row_factors,
    store_log_sums,
    store_rows,
    visible_keys,
)
from atom_kernels.attention.triton.words import are_words, in_halves
from atom_kernels.triton.support import prefetch_to_l2, wait_for_inputs


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["table_stride", "table_width"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr"],
)
def decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, sinks_ptr, out_ptr, lse_ptr,
    query_start_loc_ptr, seq_lens_ptr, block_table_ptr,
    ranges_ptr, requests_ptr, arrivals_ptr, sums_ptr, stats_ptr,
    scale, cap, q_stride, table_stride, table_width,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, LATENT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    SCALES: tl.constexpr, SCALE_BLOCK_STRIDE: tl.constexpr, SCALE_TOKEN_STRIDE: tl.constexpr,
    SCALE_HEAD_STRIDE: tl.constexpr, UNIT: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, MERGE: tl.constexpr, PREFETCH: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a key head and range of tiles; parts of requests go to ``sums [2 * ranges, K, P, D]`` and `stats`.

    A range begins at most one request that it does not end, and ends at most one that it does not begin: its two slots.
    With MERGE, the last program to store a part of a request merges them all; else `merge_kernel` must follow.
    """
    in_words: tl.constexpr = are_words(k_cache_ptr)
    multiplied_dtype: tl.constexpr = tl.float16 if in_words else q_ptr.dtype.element_ty
    kv_head = tl.program_id(0)
    piece_range = tl.program_id(1)
    k_cache_ptr += kv_head * HEAD_STRIDE
    v_cache_ptr += kv_head * HEAD_STRIDE
    if SCALES != UNSCALED:
        key_scale_ptr += kv_head * SCALE_HEAD_STRIDE
        value_scale_ptr += kv_head * SCALE_HEAD_STRIDE
    # Scales of heads are weights: nothing has to be waited for.
    for_scores, for_values = head_factors(key_scale_ptr, value_scale_ptr, SCALES, UNIT)
    scale *= for_scores
    m = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + m % GROUP
    # The ranges were written before the step's first layer (see `schedule`): these loads need not wait for inputs.
    range_at = ranges_ptr + piece_range * RANGE_FIELDS
    first_key = tl.load(range_at + 1)
    tiles_left = tl.load(range_at + 2)
    request = tl.where(tiles_left > 0, tl.load(range_at), 0)
    start, queries, first_range, last_range = _load_request(query_start_loc_ptr, requests_ptr, request)
    length = tl.load(seq_lens_ptr + request)
    table = block_table_ptr + request.to(tl.int64) * table_stride
    block_ids = load_block_ids(table, first_key, table_width, BLOCK_SIZE, BLOCK_N)
    if DEPENDENT and PREFETCH > 0:
        _prefetch_keys(
            k_cache_ptr, v_cache_ptr, table, table_width, first_key,
            tl.minimum(length, first_key + tiles_left * BLOCK_N),
            HEAD_DIM // 2 if in_words else HEAD_DIM, ROPE_DIM, LATENT, BLOCK_SIZE, BLOCK_STRIDE, TOKEN_STRIDE,
            PREFETCH * BLOCK_N,
        )  # fmt: skip
    # A program without keys ends at once, so that those of the next kernel get its place and prefetch.
    if tiles_left > 0:
        wait_for_inputs(DEPENDENT)
    while tiles_left > 0:
        begin, _ = visible_keys(queries, length, WINDOW, BLOCK_N)
        tiles = tl.minimum(tl.maximum(tl.cdiv(length - first_key, BLOCK_N), 1), tiles_left)
        tokens = (start + m // GROUP).to(tl.int64)
        present = m // GROUP < queries
        q, q_behind = load_queries(
            q_ptr, tokens, heads, present, q_stride, HEAD_DIM, ROPE_DIM, UPCAST, BLOCK_D, BLOCK_E, PARTS, in_words
        )  # fmt: skip
        if in_words:
            multiplied, divisor = in_halves(q, UPCAST)
            score_scale = scale * divisor
        else:
            multiplied, score_scale = q, scale
        positions = length - queries + m // GROUP
        best = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        sums = no_sums(BLOCK_M, BLOCK_D, PARTS)
        for at in range(first_key, first_key + tiles * BLOCK_N, BLOCK_N):
            next_ids = load_block_ids(table, at + BLOCK_N, table_width, BLOCK_SIZE, BLOCK_N)
            best, total, sums = attend_tile(
                multiplied, q_behind, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, block_ids, at, begin,
                length, positions, positions, best, total, sums, score_scale, cap, HEAD_DIM, ROPE_DIM, LATENT,
                BLOCK_SIZE, BLOCK_STRIDE, TOKEN_STRIDE, SCALES, SCALE_BLOCK_STRIDE, SCALE_TOKEN_STRIDE, UNIT, WINDOW,
                SOFT_CAP, PRECISION, UPCAST, True, BLOCK_N, BLOCK_D, BLOCK_E, PARTS, multiplied_dtype,
            )  # fmt: skip
            block_ids = next_ids
        if first_range == last_range:
            store_log_sums(lse_ptr, tokens, heads, best, total, present, NUM_HEADS)
            factors = row_factors(best, total, sinks_ptr, heads, present, for_values)
            rows = out_ptr + tokens * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
            store_rows(rows, sums, factors, present, HEAD_DIM, BLOCK_D, PARTS, in_words)
        else:
            slot = 2 * piece_range + (piece_range == first_range).to(tl.int32)
            row = (slot * tl.num_programs(0) + kv_head).to(tl.int64) * BLOCK_P + m
            store_rows(
                sums_ptr + row * HEAD_DIM, sums, tl.full([BLOCK_M], 1.0, tl.float32), present, HEAD_DIM, BLOCK_D,
                PARTS, in_words,
            )  # fmt: skip
            tl.store(stats_ptr + row * 2, best, mask=present)
            tl.store(stats_ptr + row * 2 + 1, total, mask=present)
            if MERGE:
                # All threads have stored their part before one says so.
                tl.debug_barrier()
                arrivals = arrivals_ptr + request * tl.num_programs(0) + kv_head
                if tl.atomic_add(arrivals, 1, sem="acq_rel") == last_range - first_range:
                    tl.store(arrivals, 0)
                    _merge(
                        sums_ptr, stats_ptr, sinks_ptr, out_ptr, lse_ptr, start, queries, kv_head, tl.num_programs(0),
                        0, first_range, last_range, for_values,
                        NUM_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_P, BLOCK_P, BLOCK_C,
                    )  # fmt: skip
        tiles_left -= tiles
        if tiles_left > 0:
            request += 1
            start, queries, first_range, last_range = _load_request(query_start_loc_ptr, requests_ptr, request)
            length = tl.load(seq_lens_ptr + request)
            _, first_key = visible_keys(queries, length, WINDOW, BLOCK_N)
            table = block_table_ptr + request.to(tl.int64) * table_stride
            block_ids = load_block_ids(table, first_key, table_width, BLOCK_SIZE, BLOCK_N)


@triton.jit
def _load_request(query_start_loc_ptr, requests_ptr, request):
    """Its first query token and number of those, and the ranges that hold its first and its last piece."""
    start = tl.load(query_start_loc_ptr + request)
    queries = tl.load(query_start_loc_ptr + request + 1) - start
    first_range = tl.load(requests_ptr + request * REQUEST_FIELDS)
    last_range = tl.load(requests_ptr + request * REQUEST_FIELDS + 1)
    return start, queries, first_range, last_range


@triton.jit
def _prefetch_keys(
    k_cache_ptr, v_cache_ptr, table, table_width, first_key, end,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, LATENT: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Brings the first keys of a range to the L2 cache, while the kernel before may still write the last of them."""
    nth = tl.arange(0, triton.next_power_of_2(KEYS))
    n = first_key + nth
    column = n // BLOCK_SIZE
    # Loaded whether its keys exist or not: the lengths that tell are still on their way.
    block_ids = tl.load(table + column, mask=(nth < KEYS) & (column < table_width), other=0)
    present = (nth < KEYS) & (n < end) & (column < table_width)
    rows = block_ids.to(tl.int64) * BLOCK_STRIDE + n % BLOCK_SIZE * TOKEN_STRIDE
    _prefetch_rows(k_cache_ptr + rows, present, HEAD_DIM + ROPE_DIM)
    if not LATENT:
        _prefetch_rows(v_cache_ptr + rows, present, HEAD_DIM)


@triton.jit
def _prefetch_rows(rows, present, WIDTH: tl.constexpr):
    line: tl.constexpr = 1024 // rows.dtype.element_ty.primitive_bitwidth
    num_lines: tl.constexpr = (WIDTH + line - 1) // line
    lines = tl.arange(0, triton.next_power_of_2(num_lines))
    prefetch_to_l2(rows[:, None] + lines[None, :] * line, present[:, None] & (lines < num_lines)[None, :])


@triton.jit(do_not_specialize_on_alignment=["query_start_loc_ptr"])
def merge_kernel(
    sums_ptr, stats_ptr, key_scale_ptr, value_scale_ptr, sinks_ptr, out_ptr, lse_ptr, query_start_loc_ptr, requests_ptr,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, SCALES: tl.constexpr,
    SCALE_HEAD_STRIDE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a kept row, key head and request: where pieces are so wide that one program for all rows is slow."""
    request = tl.program_id(2)
    start, queries, first_range, last_range = _load_request(query_start_loc_ptr, requests_ptr, request)
    wait_for_inputs(DEPENDENT)
    if SCALES != UNSCALED:
        key_scale_ptr += tl.program_id(1) * SCALE_HEAD_STRIDE
        value_scale_ptr += tl.program_id(1) * SCALE_HEAD_STRIDE
    _, for_values = head_factors(key_scale_ptr, value_scale_ptr, SCALES, UNIT)
    if first_range < last_range:
        _merge(
            sums_ptr, stats_ptr, sinks_ptr, out_ptr, lse_ptr, start, queries, tl.program_id(1), tl.num_programs(1),
            tl.program_id(0), first_range, last_range, for_values,
            NUM_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_P, 1, BLOCK_C,
        )  # fmt: skip


@triton.jit
def _merge(
    sums_ptr, stats_ptr, sinks_ptr, out_ptr, lse_ptr, start, queries, kv_head, num_kv_heads, first_row, first_range,
    last_range, for_values, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A request's pieces in order, weighted by their share of the softmax's sum: ROWS of the P rows of each."""
    p = first_row + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    present = p // GROUP < queries
    best = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for at in range(first_range, last_range + 1, BLOCK_C):
        pieces = at + tl.arange(0, BLOCK_C)
        slots = 2 * pieces + (pieces == first_range).to(tl.int32)
        rows = (slots * num_kv_heads + kv_head).to(tl.int64)[:, None] * BLOCK_P + p[None, :]
        inside = (pieces <= last_range)[:, None] & present[None, :]
        # These loads bypass this multiprocessor's own cache, which does not see the stores of others.
        piece_best = tl.load(stats_ptr + rows * 2, mask=inside, other=NOTHING, cache_modifier=".cg")
        piece_total = tl.load(stats_ptr + rows * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
        piece_sums = tl.load(
            sums_ptr + rows[:, :, None] * HEAD_DIM + columns[None, None, :],
            mask=inside[:, :, None] & (columns < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(best, tl.max(piece_best, axis=0))
        weights = tl.exp2(piece_best - higher[None, :])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(piece_total * weights, axis=0)
        sums = sums * shrink[:, None] + tl.sum(piece_sums * weights[:, :, None], axis=0)
        best = higher
    heads = kv_head * GROUP + p % GROUP
    tokens = (start + p // GROUP).to(tl.int64)
    store_log_sums(lse_ptr, tokens, heads, best, total, present, NUM_HEADS)
    factors = row_factors(best, total, sinks_ptr, heads, present, for_values)
    rows = out_ptr + tokens * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
    store_rows(rows, (sums,), factors, present, HEAD_DIM, BLOCK_D, 1, False)
