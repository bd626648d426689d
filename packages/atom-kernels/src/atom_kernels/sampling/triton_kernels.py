"""Random numbers and draws in Triton: a program a row, thresholds by bisection, no sort.

Shapes: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def philox_kernel(seed_ptr, sample_index_ptr, position_ptr, out_ptr, num_rows, BLOCK: tl.constexpr):
    """`philox_uniform`: Triton's own Philox4x32-10 with the key and the counter of the contract."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    seed = tl.load(seed_ptr + row, mask=inside, other=0).to(tl.uint64, bitcast=True)
    sample = tl.load(sample_index_ptr + row, mask=inside, other=0)
    position = tl.load(position_ptr + row, mask=inside, other=0)
    word0, word1, _, _ = tl.philox(
        seed, position.to(tl.uint32), (position >> 32).to(tl.uint32), sample.to(tl.uint32), (sample >> 32).to(tl.uint32)
    )
    bits = ((word0 >> 5).to(tl.int64) << 26) | (word1 >> 6).to(tl.int64)
    tl.store(out_ptr + row, bits.to(tl.float64) * 1.1102230246251565e-16, mask=inside)


@triton.jit
def sample_kernel(
    logits_ptr, row_stride, uniform_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, out_ptr, vocab_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`sample`: weights in float32, sums in float64. Every pass reads the row anew; it stays in the L2 cache."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * row_stride
    best, best_id = _best(logits_ptr, vocab_size, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    if temperature <= 0:
        tl.store(out_ptr + row, best_id.to(tl.int64))
    else:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        # Logits as integers of the same order; the threshold is the least that is kept.
        best_key = _key(best).to(tl.int64)
        threshold = tl.full([], -(2**31), tl.int64)
        if (top_k > 0) & (top_k < vocab_size):
            threshold = _kth_key(logits_ptr, vocab_size, top_k, threshold, best_key, BLOCK)
        if top_p < 1:
            threshold = _nucleus_key(
                logits_ptr, vocab_size, top_p, threshold, best_key, best, temperature, BLOCK
            )  # fmt: skip
        drawn = _draw(
            logits_ptr, vocab_size, tl.load(uniform_ptr + row), threshold, min_p, best, temperature, BLOCK
        )  # fmt: skip
        tl.store(out_ptr + row, drawn.to(tl.int64))


@triton.jit
def _load(logits_ptr, ids, vocab_size):
    """Logits, -inf for NaN and past the end; -0 is 0, so that equals have equal keys."""
    x = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("-inf"), x)
    return tl.where(x == 0, 0.0, x)


@triton.jit
def _key(x):
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _weights(x, ids, vocab_size, best, temperature):
    weights = tl.where(x == best, 1.0, tl.exp((x - best) / temperature))
    return tl.where((ids < vocab_size) & (weights == weights), weights, 0.0)


@triton.jit
def _best(logits_ptr, vocab_size, BLOCK: tl.constexpr):
    """The highest logit, and the lowest id that has it."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_ids = lanes
    for at in range(0, vocab_size, BLOCK):
        x = _load(logits_ptr, at + lanes, vocab_size)
        better = x > best
        best = tl.where(better, x, best)
        best_ids = tl.where(better, at + lanes, best_ids)
    highest = tl.max(best, axis=0)
    return highest, tl.min(tl.where(best == highest, best_ids, vocab_size), axis=0)


@triton.jit
def _kth_key(logits_ptr, vocab_size, top_k, low, high, BLOCK: tl.constexpr):
    """The largest key that at least k tokens reach, or a lower one that no further token reaches."""
    # Added to a tensor, since Triton makes a plain number of an argument that is 1.
    count_low = tl.zeros([], tl.int64) + vocab_size
    while (low < high) & (count_low != top_k):
        middle = low + (high - low + 1) // 2
        pivot = middle.to(tl.int32)
        counts = tl.zeros([BLOCK], tl.int32)
        for at in range(0, vocab_size, BLOCK):
            ids = at + tl.arange(0, BLOCK)
            reached = (_key(_load(logits_ptr, ids, vocab_size)) >= pivot) & (ids < vocab_size)
            counts += reached.to(tl.int32)
        count = tl.sum(counts, axis=0).to(tl.int64)
        enough = count >= top_k
        low = tl.where(enough, middle, low)
        count_low = tl.where(enough, count, count_low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _nucleus_key(logits_ptr, vocab_size, top_p, low, high, best, temperature, BLOCK: tl.constexpr):
    """The largest key such that the tokens that reach it have top_p of the mass of those that reach `low`."""
    total, count_low = _mass(logits_ptr, vocab_size, low, best, temperature, BLOCK)
    target = total * top_p.to(tl.float64)
    count_above = tl.zeros([], tl.int64)
    # With one token left between the bounds, that token is the last of the nucleus.
    while (low < high) & (count_low - count_above > 1):
        middle = low + (high - low + 1) // 2
        mass, count = _mass(logits_ptr, vocab_size, middle, best, temperature, BLOCK)
        enough = mass >= target
        low = tl.where(enough, middle, low)
        count_low = tl.where(enough, count, count_low)
        count_above = tl.where(enough, count_above, count)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _mass(logits_ptr, vocab_size, threshold, best, temperature, BLOCK: tl.constexpr):
    """Sum of the weights, and number, of the tokens that reach a key."""
    pivot = threshold.to(tl.int32)
    sums = tl.zeros([BLOCK], tl.float64)
    counts = tl.zeros([BLOCK], tl.int32)
    for at in range(0, vocab_size, BLOCK):
        ids = at + tl.arange(0, BLOCK)
        x = _load(logits_ptr, ids, vocab_size)
        reached = (_key(x) >= pivot) & (ids < vocab_size)
        sums += tl.where(reached, _weights(x, ids, vocab_size, best, temperature), 0.0).to(tl.float64)
        counts += reached.to(tl.int32)
    return tl.sum(sums, axis=0), tl.sum(counts, axis=0).to(tl.int64)


@triton.jit
def _kept(logits_ptr, ids, vocab_size, pivot, min_p, best, temperature):
    x = _load(logits_ptr, ids, vocab_size)
    weights = _weights(x, ids, vocab_size, best, temperature)
    return tl.where((_key(x) >= pivot) & (weights >= min_p), weights, 0.0).to(tl.float64)


@triton.jit
def _draw(logits_ptr, vocab_size, uniform, threshold, min_p, best, temperature, BLOCK: tl.constexpr):
    """The first token at which the cumulative weight exceeds uniform times the sum."""
    pivot = threshold.to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float64)
    for at in range(0, vocab_size, BLOCK):
        sums += _kept(logits_ptr, at + lanes, vocab_size, pivot, min_p, best, temperature)
    target = tl.sum(sums, axis=0) * uniform
    # The chunk in which it lies: the first that ends above the target, else (rounding) the last with any weight.
    before = tl.zeros([], tl.float64)
    chunk = tl.zeros([], tl.int32)
    chunk_before = tl.zeros([], tl.float64)
    for at in range(0, vocab_size, BLOCK):
        mass = tl.sum(_kept(logits_ptr, at + lanes, vocab_size, pivot, min_p, best, temperature), axis=0)
        here = (before <= target) & (mass > 0)
        chunk = tl.where(here, at, chunk)
        chunk_before = tl.where(here, before, chunk_before)
        before += mass
    weights = _kept(logits_ptr, chunk + lanes, vocab_size, pivot, min_p, best, temperature)
    passed = (chunk_before + tl.cumsum(weights, axis=0)) <= target
    drawn = tl.sum(passed.to(tl.int32), axis=0)
    last = tl.max(tl.where(weights > 0, lanes, 0), axis=0)
    return chunk + tl.minimum(drawn, last)
