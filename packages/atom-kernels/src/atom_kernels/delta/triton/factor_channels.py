"""What chunks of the gated delta rule need before any state is known, where each channel of a key has a gate (KDA).

How much of what token j added a later token i meets is a sum over channels of ``k_i k_j exp(g_i - g_j)``, with g the
summed log decays. It is a product of matrices once the exponent is split at a token between the two. So pairs are taken
by the smallest aligned square in whose halves they lie, split at the end of its first half: both factors are products
of decays, none of which is larger than 1, however strong the gates are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import CHUNK, NORM_EPS
from atom_kernels.delta.triton.gates import sigmoid, softplus
from atom_kernels.delta.triton.inverse import between_halves, invert
from atom_kernels.delta.triton.sequences import find_chunk, load_sequence, rows_in_chunks
from atom_kernels.triton.support import wait_for_inputs

_NORM_EPS = tl.constexpr(NORM_EPS)
_CHUNK = tl.constexpr(CHUNK)
_LOG2_CHUNK = tl.constexpr(CHUNK.bit_length() - 1)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _normed(x, scale):
    """Rows at the norm `scale`."""
    x = x.to(tl.float32)
    return x * (scale * tl.rsqrt(tl.sum(x * x, axis=1) + _NORM_EPS))[:, None]


@triton.jit
def _meet(queries, keys, decay, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """What each token's key, and its query, meets of what earlier tokens added; and the decays since the chunk began.

    Args:
        queries, keys, decay: ``[64, channels]``; the decay of a token is that before it adds.

    Returns:
        ``[64, 64]`` of keys, strictly lower triangular, and of queries, lower triangular; then ``[64, channels]`` each:
        the decays of all tokens up to one, and those of all tokens behind it.
    """
    tokens = tl.arange(0, _CHUNK)
    is_same = tokens[:, None] == tokens[None, :]
    scores = tl.where(is_same, tl.sum(queries * keys, axis=1)[:, None], 0.0)
    met = tl.zeros([_CHUNK, _CHUNK], tl.float32)
    queries, keys = queries.to(DTYPE), keys.to(DTYPE)
    # Within a token's square, up to it and behind it.
    before, behind = decay, tl.full(decay.shape, 1.0, tl.float32)
    for level in range(_LOG2_CHUNK):
        in_second = ((tokens >> level & 1) == 1)[:, None]
        to_middle = tl.where(in_second, before, behind)
        near_keys = (keys * to_middle).to(DTYPE)
        near_queries = (queries * to_middle).to(DTYPE)
        is_between = between_halves(_CHUNK, level) & in_second
        of_keys = tl.dot(near_keys, tl.trans(near_keys), input_precision=PRECISION)
        of_queries = tl.dot(near_queries, tl.trans(near_keys), input_precision=PRECISION)
        met, scores = tl.where(is_between, of_keys, met), tl.where(is_between, of_queries, scores)
        end_of_other = (tokens >> level ^ 1) << level | (1 << level) - 1
        of_other = tl.gather(before, tl.broadcast_to(end_of_other[:, None], before.shape), axis=0)
        before = tl.where(in_second, before * of_other, before)
        behind = tl.where(in_second, behind, behind * of_other)
    return met, scores, before, behind


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences"],
    do_not_specialize_on_alignment=["slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def factor_channels_kernel(
    qkv_ptr, a_ptr, b_ptr, reads_ptr, values_ptr, adds_ptr, asks_ptr, scores_ptr, decays_ptr,
    slots_ptr, query_start_loc_ptr, seq_lens_ptr, a_log_ptr, dt_bias_ptr, num_rows, num_sequences,
    a_stride, b_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr, MORE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[value heads, chunks (see find_chunk)]``. Rows of a and b are so many elements apart.

    They write for each chunk and head, with T = ``(I + A)^-1 beta``, and g the log decays summed up to a token:

    reads ``[64, X]``: ``T (k exp(g))``, what tokens say wrong of a state.
    values ``[64, V]``: ``T v``: what tokens add is values less what reads find in the state.
    adds ``[64, X]``: ``k exp(last g - g)``, where that is added.
    asks ``[64, X]``: ``q exp(g)``, what queries read of the state.
    scores ``[64, 64]``: how much of what a token added a later query reads.
    decays ``[X]``: float32, ``exp(last g)``, of the state.
    """
    head, program = tl.program_id(0), tl.program_id(1)
    place, chunk = find_chunk(program, num_sequences, query_start_loc_ptr, _CHUNK, MORE)
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    begin, stop = rows_in_chunks(first, end, context)
    first_of_chunk = begin - (context + begin - first) % _CHUNK + chunk * _CHUNK
    if (slot >= 0) & (begin < stop) & (first_of_chunk < stop):
        channels, tokens = tl.arange(0, BLOCK_X), tl.arange(0, _CHUNK)
        rows = first_of_chunk + tokens
        in_rows, in_channels = (rows >= begin) & (rows < stop), channels < KEY_DIM
        rows = rows.to(tl.int64)
        mask = in_rows[:, None] & in_channels[None, :]
        row_size: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
        queries_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY_DIM + rows[:, None] * row_size + channels[None, :]
        gates = head * KEY_DIM + channels
        rate = tl.exp(tl.load(a_log_ptr + head)) * _LOG2_E
        bias = tl.load(dt_bias_ptr + gates, mask=in_channels, other=0.0)
        of_chunk = tl.full([], program, tl.int64) * HEADS + head
        dtype = qkv_ptr.dtype.element_ty
        wait_for_inputs(DEPENDENT)
        queries = _normed(tl.load(queries_ptr, mask=mask, other=0.0), scale)
        keys = _normed(tl.load(queries_ptr + KEY_HEADS * KEY_DIM, mask=mask, other=0.0), 1.0)
        a = tl.load(a_ptr + rows[:, None] * a_stride + gates[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + rows * b_stride + head, mask=in_rows, other=0.0).to(tl.float32)
        decay = tl.where(mask, tl.exp2(-rate * softplus(a + bias[None, :])), 1.0)
        beta = tl.where(in_rows, sigmoid(b), 0.0)
        met, scores, before, behind = _meet(queries, keys, decay, HALF, PRECISION)
        square = (of_chunk * _CHUNK + tokens)[:, None] * _CHUNK + tokens[None, :]
        tl.store(scores_ptr + square, scores.to(dtype))
        table = (of_chunk * _CHUNK + tokens)[:, None] * KEY_DIM + channels[None, :]
        tl.store(adds_ptr + table, (keys * behind).to(dtype), mask=in_channels[None, :])
        tl.store(asks_ptr + table, (queries * before).to(dtype), mask=in_channels[None, :])
        last = tl.sum(tl.where((tokens == _CHUNK - 1)[:, None], before, 0.0), axis=0)
        tl.store(decays_ptr + of_chunk * KEY_DIM + channels, last, mask=in_channels)
        inverse = invert(met, beta, HALF, PRECISION).to(dtype)
        reads = tl.dot(inverse, (keys * before).to(dtype), input_precision=PRECISION)
        tl.store(reads_ptr + table, reads.to(dtype), mask=in_channels[None, :])
        for first_column in tl.static_range(0, VALUE_DIM, BLOCK_V):
            columns = first_column + tl.arange(0, BLOCK_V)
            mask = in_rows[:, None] & (columns < VALUE_DIM)[None, :]
            at = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + columns
            values = tl.load(qkv_ptr + rows[:, None] * row_size + at[None, :], mask=mask, other=0.0)
            values = tl.dot(inverse, values, input_precision=PRECISION)
            table = (of_chunk * _CHUNK + tokens)[:, None] * VALUE_DIM + columns[None, :]
            tl.store(values_ptr + table, values.to(dtype), mask=(columns < VALUE_DIM)[None, :])
