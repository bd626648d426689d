"""Draws in Triton: a pass over the logits in chunks, then the chunk and the token in which the cumulative weight lies.

Shapes: B rows, V tokens of the vocabulary, C chunks of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.sampling.triton_rows import (
    key_of,
    load_chunk,
    load_filters,
    load_of_chunks,
    slot_of,
    weights_of,
)
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def _uniform(seed, sample, position):
    """Triton's own Philox4x32-10 with the key and the counter of the contract."""
    word0, word1, _, _ = tl.philox(
        seed.to(tl.uint64, bitcast=True),
        position.to(tl.uint32), (position >> 32).to(tl.uint32), sample.to(tl.uint32), (sample >> 32).to(tl.uint32),
    )  # fmt: skip
    bits = ((word0 >> 5).to(tl.int64) << 26) | (word1 >> 6).to(tl.int64)
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def chunk_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, best_ptr, best_id_ptr, mass_ptr, vocab_size, num_chunks,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """For each chunk: the highest logit, the lowest id that has it, and the sum of weights relative to it."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(1)
    temperature = tl.load(temperature_ptr + slot_of(slots_ptr, row))
    for part in range(GROUP):
        chunk = tl.program_id(0) * GROUP + part
        if chunk < num_chunks:
            ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
            best = tl.max(x, axis=0)
            at = row.to(tl.int64) * num_chunks + chunk
            tl.store(best_ptr + at, best)
            tl.store(best_id_ptr + at, tl.min(tl.where((x == best) & (ids < vocab_size), ids, vocab_size), axis=0))
            if temperature > 0:
                weights = tl.where(ids < vocab_size, weights_of(x, best, temperature), 0.0)
                tl.store(mass_ptr + at, tl.sum(weights.to(tl.float64), axis=0))


@triton.jit
def _kept_weights(x, ids, vocab_size, best, chunk_best, temperature, threshold, min_p):
    """Weights relative to the best of the chunk, 0 for what the filters drop; float64."""
    kept = (ids < vocab_size) & (key_of(x) >= threshold) & (weights_of(x, best, temperature) >= min_p)
    return tl.where(kept, weights_of(x, chunk_best, temperature), 0.0).to(tl.float64)


@triton.jit
def kept_mass_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, threshold_ptr, best_ptr,
    mass_ptr, vocab_size, num_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Replaces the sum of each chunk by that of what the filters keep."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(1)
    slot = slot_of(slots_ptr, row)
    _, _, by_rank = load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size)
    temperature, min_p = tl.load(temperature_ptr + slot), tl.load(min_p_ptr + slot)
    if by_rank | ((temperature > 0) & (min_p > 0)):
        best = tl.max(load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS), axis=0)
        threshold = tl.load(threshold_ptr + row)
        for part in range(GROUP):
            chunk = tl.program_id(0) * GROUP + part
            if chunk < num_chunks:
                at = row.to(tl.int64) * num_chunks + chunk
                chunk_best = tl.load(best_ptr + at)
                if (key_of(chunk_best) >= threshold) & (weights_of(chunk_best, best, temperature) >= min_p):
                    ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
                    weights = _kept_weights(x, ids, vocab_size, best, chunk_best, temperature, threshold, min_p)
                    tl.store(mass_ptr + at, tl.sum(weights, axis=0))
                else:
                    tl.store(mass_ptr + at, tl.zeros([], tl.float64))


@triton.jit
def draw_kernel(
    logits_ptr, row_stride, slots_ptr, temperature_ptr, min_p_ptr, threshold_ptr, seed_ptr,
    sample_index_ptr, position_ptr, best_ptr, best_id_ptr, mass_ptr, out_ptr, vocab_size, num_chunks,
    FILTERS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The token of each row."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0)
    slot = slot_of(slots_ptr, row)
    bests = load_of_chunks(best_ptr, row, num_chunks, float("-inf"), CHUNKS)
    best = tl.max(bests, axis=0)
    temperature = tl.load(temperature_ptr + slot)
    if temperature <= 0:
        best_ids = load_of_chunks(best_id_ptr, row, num_chunks, vocab_size, CHUNKS)
        tl.store(out_ptr + row, tl.min(tl.where(bests == best, best_ids, vocab_size), axis=0).to(tl.int64))
    else:
        uniform = _uniform(
            tl.load(seed_ptr + slot), tl.load(sample_index_ptr + slot), tl.load(position_ptr + row).to(tl.int64)
        )
        if FILTERS:
            threshold, min_p = tl.load(threshold_ptr + row), tl.load(min_p_ptr + slot)
        else:
            threshold, min_p = tl.full([], -(2**31), tl.int32), tl.full([], 0.0, tl.float32)
        masses = load_of_chunks(mass_ptr, row, num_chunks, 0.0, CHUNKS)
        scales = weights_of(bests.to(tl.float64), best.to(tl.float64), temperature.to(tl.float64))
        masses *= scales
        ends = tl.cumsum(masses, axis=0)
        target = tl.sum(masses, axis=0) * uniform
        # The chunk in which it lies: the first that ends above the target, else (rounding) the last with any mass.
        chunks = tl.arange(0, CHUNKS)
        last = tl.max(tl.where(masses > 0, chunks, 0), axis=0)
        chunk = tl.minimum(tl.sum((ends <= target).to(tl.int32), axis=0), last)
        here = chunks == chunk
        before = tl.sum(tl.where(here, ends - masses, 0.0), axis=0)
        scale = tl.sum(tl.where(here, scales, 0.0), axis=0)
        chunk_best = tl.load(best_ptr + row.to(tl.int64) * num_chunks + chunk)
        ids, x = load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK)
        weights = _kept_weights(x, ids, vocab_size, best, chunk_best, temperature, threshold, min_p)
        passed = before + tl.cumsum(weights, axis=0) * scale <= target
        last_id = tl.max(tl.where(weights > 0, ids, 0), axis=0)
        drawn = tl.minimum(chunk * CHUNK + tl.sum(passed.to(tl.int32), axis=0), last_id)
        tl.store(out_ptr + row, drawn.to(tl.int64))
