"""What the sampling kernels share: a request's parameters, logits in their order, weights of tokens.

Shapes: B rows, V tokens of the vocabulary, C chunks of a row. A row is always cut into the same chunks, so that its
sums do not depend on how many rows there are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slot_of(slots_ptr, row):
    """Where the parameters of a row are in the tables."""
    return tl.load(slots_ptr + row).to(tl.int64)


@triton.jit
def load_filters(temperature_ptr, top_k_ptr, top_p_ptr, slot, vocab_size):
    """Top-k (0 if it keeps all), top-p, and whether either of them has an effect on a row that is drawn at random."""
    top_k = tl.load(top_k_ptr + slot).to(tl.int32)
    top_k = tl.where((top_k > 0) & (top_k < vocab_size), top_k, 0)
    top_p = tl.load(top_p_ptr + slot)
    return top_k, top_p, (tl.load(temperature_ptr + slot) > 0) & ((top_k > 0) | (top_p < 1))


@triton.jit
def as_logits(x):
    """-inf for NaN; -0 is 0, so that equals have equal keys."""
    x = tl.where(x != x, float("-inf"), x.to(tl.float32))
    return tl.where(x == 0, 0.0, x)


@triton.jit
def load_chunk(logits_ptr, row, row_stride, chunk, vocab_size, CHUNK: tl.constexpr):
    """Ids and logits of a chunk, -inf past the end."""
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    at = logits_ptr + row.to(tl.int64) * row_stride + ids
    return ids, as_logits(tl.load(at, mask=ids < vocab_size, other=float("-inf")))


@triton.jit
def load_of_chunks(pointer, row, num_chunks, other, CHUNKS: tl.constexpr):
    """The numbers [C] that the programs of a row stored."""
    chunks = tl.arange(0, CHUNKS)
    return tl.load(pointer + row.to(tl.int64) * num_chunks + chunks, mask=chunks < num_chunks, other=other)


@triton.jit
def weights_of(x, best, temperature):
    """Probabilities over that of `best`, in float32; equals of an infinite best share it."""
    weights = tl.where(x == best, 1.0, tl.exp((x - best) / temperature))
    return tl.where(weights == weights, weights, 0.0)


@triton.jit
def key_of(x):
    """Logits as integers of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key):
    """The logit of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
