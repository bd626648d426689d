"""Thresholds of top-k and top-p in Triton, without a sort: coarse pivots, the few tokens between two, bisection.

The pivots are guesses and only decide how many tokens remain to be searched; the search itself is exact.
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
    slot_of,
    weights_of,
)

PIVOTS = tl.constexpr(16)
# Sums at the pivots are in float32: what lies this close to a target counts as not decided.
_MARGIN = tl.constexpr(1e-4)
_LOWEST = tl.constexpr(-(2**31))


@triton.jit
def _pivots(bests, best, masses, temperature, top_k, top_p, vocab_size):
    """Logits [P], descending, the last -inf. Any would do; few tokens should lie between the two around a threshold."""
    steps = tl.arange(0, PIVOTS).to(tl.float32)
    if top_k > 0:
        # The best of the chunks are a sample of the upper tail, and give its scale.
        finite = (bests > float("-inf")) & (bests < float("inf"))
        scale = tl.sum(tl.where(finite, best - bests, 0.0), axis=0) / tl.maximum(tl.sum(finite.to(tl.int32), axis=0), 1)
        distances = tl.where(scale > 0, scale, 1.0) * tl.exp2(steps * 0.333 - 2.0)
    else:
        # All tokens below weight (1 - p) / V of the total have together less than 1 - p of it.
        total = tl.sum(masses * tl.where(masses > 0, weights_of(bests, best, temperature), 0.0), axis=0).to(tl.float32)
        nats = tl.log(vocab_size / (total * tl.maximum(1 - top_p, 1e-6)))
        distances = tl.maximum(nats, 1.0) * temperature * (steps + 1) / (PIVOTS - 1)
    pivots = best - distances
    return tl.where((steps < PIVOTS - 1) & (pivots == pivots), pivots, float("-inf"))


@triton.jit
def pivot_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, mass_ptr, pivot_ptr, sum_ptr,
    vocab_size, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The pivots [B, P], and of each chunk what reaches them: the number of tokens (top-k) or their weight (top-p)."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    num_chunks = tl.num_programs(0)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    if active:
        temperature = tl.load(temperature_ptr + slot)
        bests = load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS)
        best = tl.max(bests, axis=0)
        masses = load_of_chunks(mass_ptr, row, num_chunks, 0.0, CHUNKS)
        pivots = _pivots(bests, best, masses, temperature, top_k, top_p, vocab_size)
        places = tl.arange(0, PIVOTS)
        if chunk == 0:
            tl.store(pivot_ptr + row * PIVOTS + places, pivots)
        sums = tl.zeros([PIVOTS, LANES], tl.float32)
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        for at in tl.static_range(0, CHUNK, LANES):
            ids = chunk * CHUNK + at + tl.arange(0, LANES)[None, :]
            x = as_logits(tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")))
            worth = tl.where(top_k > 0, 1.0, weights_of(x, best, temperature))
            worth = tl.where(ids < vocab_size, worth, 0.0)
            sums += tl.where(x >= pivots[:, None], worth, 0.0)
        at_pivots = sum_ptr + (row.to(tl.int64) * PIVOTS + places) * num_chunks + chunk
        tl.store(at_pivots, tl.sum(sums, axis=1))


@triton.jit
def _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p, CHUNKS: tl.constexpr):
    """The keys between which the threshold lies, the upper one excluded: of top-p alone, or else of top-k."""
    places, chunks = tl.arange(0, PIVOTS), tl.arange(0, CHUNKS)
    at = (row.to(tl.int64) * PIVOTS + places)[:, None] * num_chunks + chunks[None, :]
    sums = tl.sum(tl.load(sum_ptr + at, mask=chunks[None, :] < num_chunks, other=0.0), axis=1)
    keys = key_of(tl.load(pivot_ptr + row * PIVOTS + places)).to(tl.int64)
    target = tl.where(top_k > 0, top_k.to(tl.float32), top_p * tl.max(sums, axis=0))
    surely = tl.where(top_k > 0, target, target * (1 + _MARGIN))
    low = tl.max(tl.where((sums >= surely) & (places < PIVOTS - 1), keys, _LOWEST), axis=0)
    short = (sums < target * (1 - _MARGIN)) & (top_k == 0)
    high = tl.min(tl.where(short, keys, 2**31), axis=0)
    return low, high


@triton.jit
def window_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, pivot_ptr, sum_ptr,
    candidate_ptr, count_ptr, above_ptr, total_ptr, vocab_size,
    REGION: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Of each chunk: the logits in the window, as many as fit into its region, and how many there are; the weight above
    the window, and in all."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    num_chunks = tl.num_programs(0)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    if active:
        low, high = _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p, CHUNKS)
        best = tl.max(load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS), axis=0)
        ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
        keys = key_of(x)
        inside = ((keys >= low) & (keys < high) & (ids < vocab_size)).to(tl.int32)
        places = tl.cumsum(inside, axis=0) - 1
        at = row.to(tl.int64) * num_chunks + chunk
        tl.store(candidate_ptr + at * REGION + places, x, mask=(inside > 0) & (places < REGION))
        tl.store(count_ptr + at, tl.sum(inside, axis=0))
        weights = weights_of(x, best, tl.load(temperature_ptr + slot))
        weights = tl.where(ids < vocab_size, weights, 0.0).to(tl.float64)
        tl.store(above_ptr + at, tl.sum(tl.where(keys >= high, weights, 0.0), axis=0))
        tl.store(total_ptr + at, tl.sum(weights, axis=0))


@triton.jit
def search_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, best_ptr, pivot_ptr, sum_ptr,
    candidate_ptr, count_ptr, above_ptr, total_ptr, threshold_ptr, vocab_size, num_chunks,
    REGION: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The least key that top-k and then top-p keep."""
    row = tl.program_id(0)
    slot = slot_of(slots_ptr, row)
    top_k, top_p, active = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    threshold = tl.full([], _LOWEST, tl.int64)
    if active:
        low, high = _window(pivot_ptr, sum_ptr, row, num_chunks, top_k, top_p, CHUNKS)
        temperature = tl.load(temperature_ptr + slot)
        best = tl.max(load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS), axis=0)
        # A region that was too small leaves the row itself to be searched: slower, and as exact.
        counts = load_of_chunks(count_ptr, row, num_chunks, 0, CHUNKS)
        regions = candidate_ptr + row.to(tl.int64) * num_chunks * REGION
        stride = tl.full([], REGION, tl.int32)
        if tl.max(counts, axis=0) > REGION:
            regions = logits_ptr + row.to(tl.int64) * row_stride
            stride = tl.full([], CHUNK, tl.int32)
            sizes = vocab_size - tl.arange(0, CHUNKS) * CHUNK
            counts = tl.minimum(tl.maximum(sizes, 0), CHUNK)
        threshold, last = low, tl.minimum(high - 1, key_of(best).to(tl.int64))
        if top_k > 0:
            threshold = _kth_key(regions, stride, counts, low, last, top_k, LANES)
        if top_p < 1:
            above = tl.sum(load_of_chunks(above_ptr, row, num_chunks, 0.0, CHUNKS), axis=0)
            total = tl.sum(load_of_chunks(total_ptr, row, num_chunks, 0.0, CHUNKS), axis=0)
            if top_k > 0:
                above = tl.zeros([], tl.float64)
                total, _ = _reaching(regions, stride, counts, threshold, last, best, temperature, LANES)
            threshold = _nucleus_key(
                regions, stride, counts, threshold, last, total * top_p.to(tl.float64) - above, best, temperature, LANES
            )
    tl.store(threshold_ptr + row, threshold.to(tl.int32))


@triton.jit
def _kth_key(regions, stride, counts, low, last, top_k, LANES: tl.constexpr):
    """The largest key in low..last that at least k tokens reach, or a lower one that no further token reaches."""
    count_low = tl.full([], 2**31 - 1, tl.int32)
    while (low < last) & (count_low != top_k):
        middle = low + (last - low + 1) // 2
        _, count = _reaching(regions, stride, counts, middle, 2**31, 0.0, 1.0, LANES)
        enough = count >= top_k
        low = tl.where(enough, middle, low)
        count_low = tl.where(enough, count, count_low)
        last = tl.where(enough, last, middle - 1)
    return low


@triton.jit
def _nucleus_key(regions, stride, counts, low, last, target, best, temperature, LANES: tl.constexpr):
    """The largest key in low..last such that the tokens from it to last have the target's weight."""
    upper = last
    _, count_low = _reaching(regions, stride, counts, low, upper, best, temperature, LANES)
    count_above = tl.zeros([], tl.int32)
    # With one token left between the bounds, that token is the last of the nucleus.
    while (low < last) & (count_low - count_above > 1):
        middle = low + (last - low + 1) // 2
        mass, count = _reaching(regions, stride, counts, middle, upper, best, temperature, LANES)
        enough = mass >= target
        low = tl.where(enough, middle, low)
        count_low = tl.where(enough, count, count_low)
        count_above = tl.where(enough, count_above, count)
        last = tl.where(enough, last, middle - 1)
    return low


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
