"""What decodes and prompts have in common in Triton: a tile of keys folded into the softmax of some query rows.

Shapes: M query rows, N keys of a tile, D head_dim, W columns of a part. Scores are kept in base 2.

Columns of queries, keys, values and sums lie in PARTS blocks beside each other, in tuples. Products of two parts do not
wait for each other, as the steps of one long product do: latents have 512 columns, and few rows to fill the time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.words import are_words, columns_of, parts_of_words, rounded_product

# The highest score of rows that have seen no key yet: below any other, and finite, so that differences are.
NOTHING = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)
# Below every scale of a token: a tile may have no token.
SMALLEST = tl.constexpr(1.0e-37)
# Where the scales of cached numbers are: there are none, each head has one, or each token and head.
UNSCALED = tl.constexpr(0)
SCALED_BY_HEAD = tl.constexpr(1)
SCALED_BY_TOKEN = tl.constexpr(2)


@triton.jit
def visible_keys(queries, length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First key that the last `queries` tokens of a request see, and where the tile that holds it begins."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - queries - WINDOW + 1, 0)
    return first, first // BLOCK_N * BLOCK_N


@triton.jit
def head_factors(key_scale_ptr, value_scale_ptr, SCALES: tl.constexpr, UNIT: tl.constexpr):
    """What all scores of a key head are multiplied by, and all sums of its values; UNIT: see `attend_tile`."""
    for_scores, for_values = 1.0, 1.0 / UNIT
    if SCALES == SCALED_BY_HEAD:
        for_scores = tl.load(key_scale_ptr)
        for_values *= tl.load(value_scale_ptr)
    return for_scores, for_values


@triton.jit
def load_block_ids(table_ptr, at, table_width, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The block of each of the keys ``at:at + N``, where `at` is a multiple of N; past the table's end block 0."""
    n = tl.arange(0, BLOCK_N)
    column = at // BLOCK_SIZE + n // BLOCK_SIZE if BLOCK_N % BLOCK_SIZE == 0 else (at + n) // BLOCK_SIZE
    return tl.load(table_ptr + column, mask=column < table_width, other=0)


@triton.jit
def load_queries(
    q_ptr, tokens, heads, present, q_stride,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, PARTS: tl.constexpr, IN_WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of queries in parts ``[M, W]``, and what lies behind them ``[M, E]`` that meets the second part of keys."""
    behind = tl.arange(0, BLOCK_E)
    row = q_ptr + tokens[:, None] * q_stride + heads[:, None] * (HEAD_DIM + ROPE_DIM)
    q = ()
    for part in tl.static_range(PARTS):
        columns = columns_of(part, BLOCK_D, PARTS, IN_WORDS)
        inside = present[:, None] & (columns < HEAD_DIM)[None, :]
        x = tl.load(row + columns[None, :], mask=inside, other=0.0)
        q += (x.to(tl.float32) if UPCAST else x,)
    inside = present[:, None] & (behind < ROPE_DIM)[None, :]
    q_behind = tl.load(row + HEAD_DIM + behind[None, :], mask=inside, other=0.0)
    if UPCAST:
        q_behind = q_behind.to(tl.float32)
    return q, q_behind


@triton.jit
def no_sums(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr):
    """Sums of values before the first tile: parts ``[M, W]``."""
    sums = ()
    for _ in tl.static_range(PARTS):
        sums += (tl.zeros([BLOCK_M, BLOCK_D // PARTS], tl.float32),)
    return sums


@triton.jit
def _load_rows(
    cache_ptr, within, blocks, present, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """``[N, W]`` as stored, of which some rows (MASKED) and columns may be absent: zeros."""
    columns = tl.arange(0, BLOCK_W)
    nothing = 0 if are_words(cache_ptr) else 0.0
    # What changes from tile to tile comes last: the rest is computed once.
    at = (cache_ptr + within[:, None] + columns[None, :]) + blocks[:, None]
    if MASKED and WIDTH >= BLOCK_W:
        return tl.load(at, mask=present[:, None], other=nothing)
    elif MASKED:
        return tl.load(at, mask=present[:, None] & (columns < WIDTH)[None, :], other=nothing)
    elif WIDTH >= BLOCK_W:
        return tl.load(at)
    else:
        return tl.load(at, mask=(columns < WIDTH)[None, :], other=nothing)


@triton.jit
def _load_numbers(
    cache_ptr, within, blocks, present, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, MASKED: tl.constexpr,
    UPCAST: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The same as numbers that are multiplied."""
    x = _load_rows(cache_ptr, within, blocks, present, WIDTH, BLOCK_W, MASKED)
    if cache_ptr.dtype.element_ty.primitive_bitwidth == 8 and tl.bfloat16 == DTYPE:
        # NVIDIA has no instruction for this, and Triton's way from half precision takes the time of a few.
        x = x.to(tl.float32)
    x = x.to(DTYPE)
    if UPCAST:
        x = x.to(tl.float32)
    return x


@triton.jit
def _load_parts(
    cache_ptr, within, blocks, present, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr, UPCAST: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = BLOCK_W // PARTS
    parts = ()
    if are_words(cache_ptr):
        words = _load_rows(cache_ptr, within, blocks, present, WIDTH // 2, width, MASKED)
        parts = parts_of_words(words, UPCAST)
    else:
        for part in tl.static_range(PARTS):
            x = _load_numbers(
                cache_ptr + part * width, within, blocks, present, WIDTH - part * width, width, MASKED, UPCAST, DTYPE
            )  # fmt: skip
            parts += (x,)
    return parts


@triton.jit
def attend_tile(
    q, q_behind, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, block_ids, at, begin, end, positions,
    last_seen, best, total, sums, scale, cap,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, LATENT: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr, SCALE_BLOCK_STRIDE: tl.constexpr, SCALE_TOKEN_STRIDE: tl.constexpr, UNIT: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Keys ``at:at + N`` folded into each row's maximum `best`, sum of exponentials `total` and of values `sums`.

    Rows at ``positions [M]`` see keys up to those at ``last_seen [M]``, and a window is counted from their own. MASKED:
    some keys lie outside ``begin:end`` or are not seen by all rows; otherwise nothing is checked. Block ids come from
    outside, where they are read a tile ahead: a load whose address waits for another load takes twice the pipeline
    stages.

    ROPE_DIM elements of keys that are no elements of values lie behind the others; LATENT: those others are the values.

    SCALES: where each token has scales, scores are multiplied by those of keys, and weights by those of values. Weights
    are also multiplied by UNIT, so that in half precision none is lost: the largest number of the cache's format, since
    such a factor is no smaller than a value, or that of words, whose factors are taken beside the largest of the tile.
    `head_factors` has what is left to do. Where keys come as words, `scale` is that of each row (see `in_halves`).
    """
    in_words: tl.constexpr = are_words(k_cache_ptr)
    n = at + tl.arange(0, BLOCK_N)
    present = n < end
    if WINDOW > 0:
        present &= n >= begin
    blocks = block_ids.to(tl.int64) * BLOCK_STRIDE
    slots = (tl.arange(0, BLOCK_N) if BLOCK_N % BLOCK_SIZE == 0 else n) % BLOCK_SIZE
    within = slots * TOKEN_STRIDE
    k = _load_parts(k_cache_ptr, within, blocks, present, HEAD_DIM, BLOCK_D, PARTS, MASKED, UPCAST, DTYPE)
    v = k
    if not LATENT:
        v = _load_parts(v_cache_ptr, within, blocks, present, HEAD_DIM, BLOCK_D, PARTS, MASKED, UPCAST, DTYPE)
    scores = tl.dot(q[0], tl.trans(k[0]), input_precision=PRECISION)
    if ROPE_DIM > 0:
        behind = _load_numbers(
            k_cache_ptr + HEAD_DIM, within, blocks, present, ROPE_DIM, BLOCK_E, MASKED, UPCAST, DTYPE
        )  # fmt: skip
        scores = tl.dot(q_behind, tl.trans(behind), scores, input_precision=PRECISION)
    for part in tl.static_range(1, PARTS):
        # Triton would make a plain sum one long product again.
        scores = tl.fma(tl.dot(q[part], tl.trans(k[part]), input_precision=PRECISION), 1.0, scores)
    if SCALES == SCALED_BY_TOKEN:
        scale_at = block_ids.to(tl.int64) * SCALE_BLOCK_STRIDE + slots * SCALE_TOKEN_STRIDE
        key_factors = tl.load(key_scale_ptr + scale_at, mask=present, other=0.0)
        value_factors = key_factors
        if not LATENT:
            value_factors = tl.load(value_scale_ptr + scale_at, mask=present, other=0.0)
        scores *= key_factors[None, :]
    scale_of_scores = scale[:, None] if in_words else scale
    if in_words and not SOFT_CAP:
        # Queries may be of any size here. One instruction for this and the difference below would leave what is lost
        # in rounding a large product, in place of zero.
        scores = rounded_product(scores, scale_of_scores, UPCAST)
        scale, scale_of_scores = 1.0, 1.0
    if SOFT_CAP:
        # tanh by exp2, which has an instruction of its own.
        scores = cap * (2.0 / (1.0 + tl.exp2(-2.0 * LOG2_E * scale_of_scores * scores)) - 1.0)
        scale, scale_of_scores = 1.0, 1.0
    if MASKED:
        seen = (n[None, :] <= last_seen[:, None]) & present[None, :]
        if WINDOW > 0:
            seen &= n[None, :] > positions[:, None] - WINDOW
        scores = tl.where(seen, scores, NOTHING)
    higher = tl.maximum(best, tl.max(scores, axis=1) * scale)
    # Scaled here and not before: the product and the difference are one instruction.
    weights = tl.exp2(scores * scale_of_scores - higher[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, axis=1)
    largest_factor = 1.0
    if SCALES == SCALED_BY_TOKEN:
        if in_words:
            largest_factor = tl.maximum(tl.max(tl.abs(value_factors)), SMALLEST)
            value_factors /= largest_factor
        weights *= (value_factors * UNIT)[None, :]
    elif UNIT != 1.0:
        weights *= UNIT
    weights = weights.to(DTYPE)
    if UPCAST:
        weights = weights.to(tl.float32)
    new_sums = ()
    for part in tl.static_range(PARTS):
        if in_words and SCALES == SCALED_BY_TOKEN:
            of_tile = tl.dot(weights, v[part], input_precision=PRECISION)
            new_sums += (tl.fma(of_tile, largest_factor, sums[part] * shrink[:, None]),)
        else:
            new_sums += (tl.dot(weights, v[part], sums[part] * shrink[:, None], input_precision=PRECISION),)
    return higher, total, new_sums


@triton.jit
def row_factors(best, total, sinks_ptr, heads, inside, for_values):
    """The last factors of the sums ``[M]``; those of rows that saw no key are zeros, and remain so.

    for_values: see `head_factors`.
    """
    shrink = 1.0
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + heads, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        higher = tl.maximum(best, sink)
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.exp2(sink - higher)
    return shrink * for_values / tl.where(total > 0.0, total, 1.0)


@triton.jit
def store_log_sums(lse_ptr, tokens, heads, best, total, present, NUM_HEADS: tl.constexpr):
    """The log-sum-exp of each row's scores, of base e, to ``lse [T, H]``; nothing where there is none to fill."""
    if lse_ptr is not None:
        lse = (best + tl.log2(tl.where(total > 0.0, total, 1.0))) / LOG2_E
        lse = tl.where(total > 0.0, lse, float("-inf"))
        tl.store(lse_ptr + tokens * NUM_HEADS + heads, lse, mask=present)


@triton.jit
def store_rows(
    rows, sums, factors, present, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr,
    IN_WORDS: tl.constexpr,
):  # fmt: skip
    """Parts of ``sums * factors`` to where `rows` points."""
    for part in tl.static_range(PARTS):
        columns = columns_of(part, BLOCK_D, PARTS, IN_WORDS)
        inside = present[:, None] & (columns < HEAD_DIM)[None, :]
        x = (sums[part] * factors[:, None]).to(rows.dtype.element_ty)
        tl.store(rows[:, None] + columns[None, :], x, mask=inside)
