"""Thresholds of top-k and top-p in Triton, without a sort: a guess, the few tokens around it, bisection.

The guess decides only how many tokens remain to be searched: the search itself is exact. Chunks whose best token lies
below what is looked for are not read.
Shapes: B rows, V tokens of the vocabulary, C chunks of a row, P pivots.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.sampling.triton_rows import (
    as_logits,
    key_of,
    load_chunk,
    load_filters,
    load_of_chunks,
    logit_of,
    slot_of,
    weights_of,
)
from atom_kernels.triton.support import wait_for_inputs

PIVOTS = tl.constexpr(16)
# Sums at the pivots are in float32 and in any order: what lies this close to a target counts as not decided.
_MARGIN = tl.constexpr(1e-4)
_LOWEST = tl.constexpr(-(2**31))


@triton.jit
def pivot_kernel(
    slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, mass_ptr, row_best_ptr, total_ptr, pivot_ptr, sum_ptr,
    vocab_size, num_chunks, CHUNKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """For each row: the best logit, the weight of all, pivots [P], and zeros for the sums there.

    Any pivots would do; few tokens should lie between two of them.
    """
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    if active:
        places = tl.arange(0, PIVOTS)
        bests = load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS)
        best, steps = tl.max(bests, axis=0), places.to(tl.float32)
        temperature = tl.load(temperature_ptr + slot)
        masses = load_of_chunks(mass_ptr, row, num_chunks, 0.0, CHUNKS)
        scales = weights_of(bests.to(tl.float64), best.to(tl.float64), temperature.to(tl.float64))
        total = tl.sum(masses * scales, axis=0)
        tl.store(row_best_ptr + row, best)
        tl.store(total_ptr + row, total)
        if top_k > num_chunks:
            # The best of the chunks are a sample of the upper tail, and give its scale.
            finite = (bests > float("-inf")) & (bests < float("inf"))
            scale = tl.sum(tl.where(finite, best - bests, 0.0), axis=0) / tl.sum(finite.to(tl.float32), axis=0)
            pivots = best - tl.where(scale > 0, scale, 1.0) * tl.exp2((steps - 3) * 0.25)
        elif top_k > 0:
            # At least k tokens reach the k-th best of the chunks.
            low, high = tl.full([], _LOWEST, tl.int64), key_of(best).to(tl.int64)
            keys = tl.where(tl.arange(0, CHUNKS) < num_chunks, key_of(bests).to(tl.int64), _LOWEST - 1)
            while low < high:
                middle = low + (high - low + 1) // 2
                enough = tl.sum((keys >= middle).to(tl.int32), axis=0) >= top_k
                low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
            pivots = tl.max(tl.where(keys == low, bests, float("-inf")), axis=0) - steps  # the first is the highest
        else:
            # All tokens below weight (1 - p) / V of the total have together less than 1 - p of it.
            nats = tl.log(vocab_size / (total.to(tl.float32) * tl.maximum(1 - top_p, 1e-6)))
            pivots = best - (tl.maximum(nats, 0.0) + 1.0) * temperature * (steps + 1) / PIVOTS
        tl.store(pivot_ptr + row * PIVOTS + places, tl.where(pivots == pivots, pivots, float("-inf")))
        tl.store(sum_ptr + row * PIVOTS + places, tl.zeros([PIVOTS], tl.float32))


@triton.jit
def pivot_sum_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, row_best_ptr, total_ptr,
    pivot_ptr, sum_ptr, vocab_size, num_chunks,
    CHUNK: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """For each pivot, the tokens that reach it: their number (top-k), or their share of the weight (top-p)."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(1)
    slot = slot_of(slots_ptr, row)
    top_k, _, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    if active & ((top_k == 0) | (top_k > num_chunks)):
        places = tl.arange(0, PIVOTS)
        pivots = tl.load(pivot_ptr + row * PIVOTS + places)
        best, temperature = tl.load(row_best_ptr + row), tl.load(temperature_ptr + slot)
        total = tl.load(total_ptr + row).to(tl.float32)
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        sums = tl.zeros([PIVOTS, LANES], tl.float32)
        for part in range(GROUP):
            chunk = tl.program_id(0) * GROUP + part
            inside = chunk < num_chunks
            chunk_best = tl.load(best_ptr + row.to(tl.int64) * num_chunks + chunk, mask=inside, other=float("-inf"))
            if inside & (chunk_best >= tl.min(pivots, axis=0)):
                for at in tl.static_range(0, CHUNK, LANES):
                    ids = chunk * CHUNK + at + tl.arange(0, LANES)[None, :]
                    x = as_logits(tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")))
                    worth = tl.where(top_k > 0, 1.0, weights_of(x, best, temperature) / total)
                    # What lies past the end reaches a pivot of -inf alone, which all tokens reach.
                    sums += tl.where(x >= pivots[:, None], worth, 0.0)
        tl.atomic_add(sum_ptr + row * PIVOTS + places, tl.sum(sums, axis=1), sem="relaxed")


@triton.jit
def _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p):
    """The keys between which the threshold of top-k lies (of top-p where top-k is not set), the upper one excluded."""
    places = row * PIVOTS + tl.arange(0, PIVOTS)
    keys = key_of(tl.load(pivot_ptr + places)).to(tl.int64)
    sums = tl.load(sum_ptr + places)
    target = tl.where(top_k > 0, top_k.to(tl.float32), top_p)
    enough = sums >= tl.where(top_k > 0, target, target + _MARGIN)
    enough = enough | ((top_k > 0) & (top_k <= num_chunks))
    short = (sums < target - _MARGIN) & (top_k == 0)
    return tl.max(tl.where(enough, keys, _LOWEST), axis=0), tl.min(tl.where(short, keys, 2**31), axis=0)


@triton.jit
def window_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, row_best_ptr, total_ptr,
    pivot_ptr, sum_ptr, candidate_ptr, count_ptr, above_ptr, vocab_size, num_chunks,
    REGION: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """For each chunk: the logits in the window (as many as its region holds), their number, the weight above them."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(1)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    if active:
        low, high = _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p)
        best, temperature = tl.load(row_best_ptr + row), tl.load(temperature_ptr + slot)
        for part in range(GROUP):
            chunk = tl.program_id(0) * GROUP + part
            if chunk < num_chunks:
                at = row.to(tl.int64) * num_chunks + chunk
                chunk_best = key_of(tl.load(best_ptr + at))
                if chunk_best >= low:
                    ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
                    keys = key_of(x)
                    inside = ((keys >= low) & (keys < high) & (ids < vocab_size)).to(tl.int32)
                    places = tl.cumsum(inside, axis=0) - 1
                    tl.store(candidate_ptr + at * REGION + places, x, mask=(inside > 0) & (places < REGION))
                    tl.store(count_ptr + at, tl.sum(inside, axis=0))
                else:
                    tl.store(count_ptr + at, 0)
                if chunk_best >= high:
                    ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
                    weights = tl.where(key_of(x) >= high, weights_of(x, best, temperature), 0.0)
                    tl.store(above_ptr + at, tl.sum(weights.to(tl.float64), axis=0))
                else:
                    tl.store(above_ptr + at, tl.zeros([], tl.float64))


@triton.jit
def search_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, row_best_ptr, total_ptr,
    pivot_ptr, sum_ptr, candidate_ptr, count_ptr, above_ptr, threshold_ptr, vocab_size, num_chunks,
    REGION: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The least key that top-k and then top-p keep."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    threshold = tl.full([], _LOWEST, tl.int64)
    if active:
        low, high = _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p)
        counts = load_of_chunks(count_ptr, row, num_chunks, 0, CHUNKS)
        # What does not fit in its region is searched for in the row itself: slower, and as exact.
        most = tl.max(counts, axis=0)
        full = most > REGION
        own_logits = tl.minimum(tl.maximum(vocab_size - tl.arange(0, CHUNKS) * CHUNK, 0), CHUNK)
        counts, stride = tl.where(full, own_logits, counts), tl.where(full, CHUNK, REGION)
        candidates = candidate_ptr + row.to(tl.int64) * num_chunks * REGION
        logits = logits_ptr + row.to(tl.int64) * row_stride
        # As addresses: Triton's compiler for AMD merges no pointers into two arrays.
        regions = tl.where(full, logits.to(tl.int64), candidates.to(tl.int64)).to(tl.pointer_type(tl.float32))
        best, temperature = tl.load(row_best_ptr + row), tl.load(temperature_ptr + slot)
        last, total = tl.minimum(high - 1, key_of(best).to(tl.int64)), tl.load(total_ptr + row)
        above = tl.sum(load_of_chunks(above_ptr, row, num_chunks, 0.0, CHUNKS), axis=0)
        if most <= 8:
            threshold = _search(regions, stride, counts, low, last, top_k, top_p, total, above, best, temperature, 8)
        else:
            threshold = _search(regions, stride, counts, low, last, top_k, top_p, total, above, best, temperature, 32)
    tl.store(threshold_ptr + row, threshold.to(tl.int32))


@triton.jit
def _search(
    regions, stride, counts, low, last, top_k, top_p, total, above, best, temperature, LANES: tl.constexpr
):  # fmt: skip
    """The least key kept, among the candidates with keys in low..last."""
    upper, step = last, tl.zeros([], tl.int32)
    if top_k > 0:
        # The largest key that at least k tokens reach, or a lower one that no further token reaches.
        count_low = tl.full([], 2**31 - 1, tl.int32)
        while (low < last) & (count_low != top_k):
            middle, step = _between(low, last, step), step + 1
            _, count = _reaching(regions, stride, counts, middle, upper, best, temperature, LANES)
            enough = count >= top_k
            low, last = tl.where(enough, middle, low), tl.where(enough, last, middle - 1)
            count_low = tl.where(enough, count, count_low)
        last, step = upper, tl.zeros([], tl.int32)
    if top_p < 1:
        mass, count_low = _reaching(regions, stride, counts, low, upper, best, temperature, LANES)
        target = tl.where(top_k > 0, mass, total) * top_p.to(tl.float64) - above
        count_above = tl.zeros([], tl.int32)
        # The largest key whose tokens weigh enough together. Where one token is left, it is the last one kept.
        while (low < last) & (count_low - count_above > 1):
            middle, step = _between(low, last, step), step + 1
            mass, count = _reaching(regions, stride, counts, middle, upper, best, temperature, LANES)
            enough = mass >= target
            low, last = tl.where(enough, middle, low), tl.where(enough, last, middle - 1)
            count_low, count_above = tl.where(enough, count, count_low), tl.where(enough, count_above, count)
    return low


@triton.jit
def _between(low, last, step):
    """A key in low + 1..last: halfway by logit at first, which halves the tokens; then halfway by key, which ends."""
    logit = 0.5 * (logit_of(low) + logit_of(last))
    by_logit = tl.minimum(tl.maximum(key_of(logit).to(tl.int64), low + 1), last)
    use_logit = (step < 24) & (logit > float("-inf")) & (logit < float("inf"))
    return tl.where(use_logit, by_logit, low + (last - low + 1) // 2)


@triton.jit
def _reaching(regions, stride, counts, low, last, best, temperature, LANES: tl.constexpr):
    """Weight and number of the candidates with keys in low..last."""
    chunks = tl.arange(0, counts.shape[0])[:, None]
    sums = tl.zeros([counts.shape[0], LANES], tl.float64)
    numbers = tl.zeros([counts.shape[0], LANES], tl.int32)
    for start in range(0, tl.max(counts, axis=0), LANES):
        places = start + tl.arange(0, LANES)[None, :]
        inside = places < counts[:, None]
        x = as_logits(tl.load(regions + chunks * stride + places, mask=inside, other=float("-inf")))
        keys = key_of(x)
        inside = inside & (keys >= low) & (keys <= last)
        sums += tl.where(inside, weights_of(x, best, temperature), 0.0).to(tl.float64)
        numbers += inside.to(tl.int32)
    return tl.sum(tl.sum(sums, axis=1), axis=0), tl.sum(tl.sum(numbers, axis=1), axis=0)
