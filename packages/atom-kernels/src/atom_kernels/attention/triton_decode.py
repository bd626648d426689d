"""Attention of few query tokens over pages in Triton: keys split over programs, results merged by log-sum-exp.

A request's keys are cut by its own length alone, so its result does not depend on its neighbors.
Shapes: T tokens, H query heads, K key/value heads, G = H / K, D head_dim, S splits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Keys of one program, unless that would give more splits than a merge takes.
SPLIT = 256
MAX_SPLITS = 64


@triton.jit
def visible_keys(length, query_position, WINDOW: tl.constexpr):
    """First key that a query sees, and one past the last."""
    last = tl.minimum(query_position + 1, length)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(query_position - WINDOW + 1, 0)
    return first, last


@triton.jit
def split_length(num_keys, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Keys of each split, a multiple of SPLIT."""
    return tl.maximum(tl.cdiv(num_keys, SPLIT * MAX_SPLITS), 1) * SPLIT


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_splits", "table_stride"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr"],
)
def decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, partial_ptr, lse_ptr, query_start_loc_ptr, seq_lens_ptr, block_table_ptr,
    scale, soft_cap, q_stride, block_stride, token_stride, head_stride, table_stride, num_splits,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program a request, key head and split: partial ``[T, H, S, D]`` and lse ``[T, H, S]`` (base 2), float32."""
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    request = tl.program_id(2)
    start = tl.load(query_start_loc_ptr + request)
    stop = tl.load(query_start_loc_ptr + request + 1)
    length = tl.load(seq_lens_ptr + request)
    table = block_table_ptr + request.to(tl.int64) * table_stride
    group = tl.arange(0, BLOCK_G)
    columns = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + group
    q_inside = (group < GROUP)[:, None] & (columns < HEAD_DIM)[None, :]
    dtype = q_ptr.dtype.element_ty
    for token in range(start, stop):
        first, last = visible_keys(length, length - stop + token, WINDOW)
        keys = split_length(last - first, SPLIT, MAX_SPLITS)
        begin = first + split * keys
        end = tl.minimum(begin + keys, last)
        if begin < end:
            row = start.to(tl.int64) + (token - start)
            q = tl.load(q_ptr + row * q_stride + heads[:, None] * HEAD_DIM + columns[None, :], mask=q_inside, other=0.0)
            if UPCAST:
                q = q.to(tl.float32)
            best = tl.full([BLOCK_G], float("-inf"), tl.float32)
            total = tl.zeros([BLOCK_G], tl.float32)
            sums = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
            for at in range(begin, end, BLOCK_N):
                n = at + tl.arange(0, BLOCK_N)
                seen = n < end
                block = tl.load(table + n // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
                offset = block * block_stride + (n % BLOCK_SIZE) * token_stride + kv_head * head_stride
                inside = seen[:, None] & (columns < HEAD_DIM)[None, :]
                k = tl.load(k_cache_ptr + offset[:, None] + columns[None, :], mask=inside, other=0.0).to(dtype)
                v = tl.load(v_cache_ptr + offset[:, None] + columns[None, :], mask=inside, other=0.0).to(dtype)
                if UPCAST:
                    k = k.to(tl.float32)
                    v = v.to(tl.float32)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
                if SOFT_CAP:
                    scores = soft_cap * (2.0 / (1.0 + tl.exp2(-2.885390081777927 * scores / soft_cap)) - 1.0)
                scores = tl.where(seen[None, :], scores * 1.4426950408889634, float("-inf"))
                higher = tl.maximum(best, tl.max(scores, axis=1))
                weights = tl.exp2(scores - higher[:, None])
                shrink = tl.exp2(best - higher)
                total = total * shrink + tl.sum(weights, axis=1)
                weights = weights.to(dtype)
                if UPCAST:
                    weights = weights.to(tl.float32)
                sums = sums * shrink[:, None] + tl.dot(weights, v, input_precision=PRECISION)
                best = higher
            out = (row * NUM_HEADS + heads) * num_splits + split
            tl.store(lse_ptr + out, best + tl.log2(total), mask=group < GROUP)
            sums = sums / total[:, None]
            tl.store(partial_ptr + out[:, None] * HEAD_DIM + columns[None, :], sums, mask=q_inside)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"])
def merge_kernel(
    partial_ptr, lse_ptr, sinks_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, num_splits,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr,
    SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program a request and query head: the splits' results, weighted by their share of the softmax's sum."""
    head = tl.program_id(0)
    request = tl.program_id(1)
    start = tl.load(query_start_loc_ptr + request)
    stop = tl.load(query_start_loc_ptr + request + 1)
    length = tl.load(seq_lens_ptr + request)
    columns = tl.arange(0, BLOCK_D)
    for token in range(start, stop):
        first, last = visible_keys(length, length - stop + token, WINDOW)
        used = tl.cdiv(last - first, split_length(last - first, SPLIT, MAX_SPLITS))
        row = (start.to(tl.int64) + (token - start)) * NUM_HEADS + head
        best = float("-inf")
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
            best = sink
        total = 0.0
        if sinks_ptr is not None:
            total = 1.0
        sums = tl.zeros([BLOCK_D], tl.float32)
        # Steps of a fixed size: how many splits the batch has room for must not change the order of a sum.
        for at in range(0, used, BLOCK_S):
            splits = at + tl.arange(0, BLOCK_S)
            lse = tl.load(lse_ptr + row * num_splits + splits, mask=splits < used, other=float("-inf"))
            higher = tl.maximum(best, tl.max(lse, axis=0))
            weights = tl.exp2(lse - higher)
            shrink = tl.exp2(best - higher)
            inside = (splits < used)[:, None] & (columns < HEAD_DIM)[None, :]
            partial = tl.load(
                partial_ptr + (row * num_splits + splits)[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0
            )
            total = total * shrink + tl.sum(weights, axis=0)
            sums = sums * shrink + tl.sum(partial * weights[:, None], axis=0)
            best = higher
        out = row * HEAD_DIM + columns
        tl.store(out_ptr + out, (sums / total).to(out_ptr.dtype.element_ty), mask=columns < HEAD_DIM)
