"""What chunks of the gated delta rule need before any state is known, in Triton: a program has a chunk and a head.

Within a chunk, what its tokens add to the state, D, solves ``(I + A) D = beta (V - decayed K S)``, where A says how
much of what an earlier token added a later key meets. ``(I + A)^-1 beta`` is made here, and so are the scores by which
queries read D. Both come of rows as they are given: norms are factors of tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import CHUNK, NORM_EPS
from atom_kernels.delta.triton.gates import sigmoid, softplus
from atom_kernels.delta.triton.inverse import invert
from atom_kernels.delta.triton.sequences import find_chunk, load_sequence, rows_in_chunks
from atom_kernels.triton.support import wait_for_inputs

_NORM_EPS = tl.constexpr(NORM_EPS)
_CHUNK = tl.constexpr(CHUNK)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences"],
    do_not_specialize_on_alignment=["slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def factor_chunks_kernel(
    qkv_ptr, a_ptr, b_ptr, squares_ptr, factors_ptr,
    slots_ptr, query_start_loc_ptr, seq_lens_ptr, a_log_ptr, dt_bias_ptr, num_rows, num_sequences,
    a_stride, b_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_X: tl.constexpr, MORE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[value heads, chunks (see find_chunk)]``. Rows of a and b are so many elements apart.

    The last chunks go first: what is read first of what they write is then the last that was written, and in caches.

    They write for each chunk and head, with g the decays summed up to a token, and r its norm's inverse:

    squares ``[2, 64, 64]``: ``(I + A)^-1 beta``, and scores: how much of what a token added a later query reads.
    factors ``[4, 64]``: float32; of keys that read the state, ``r exp(g)``; of keys that add to it,
    ``r exp(last g - g)``; of queries, ``scale r exp(g)``; of the state, ``exp(last g)``.
    """
    head, program = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    place, chunk = find_chunk(program, num_sequences, query_start_loc_ptr, _CHUNK, MORE)
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    begin, stop = rows_in_chunks(first, end, context)
    first_of_chunk = begin - (context + begin - first) % _CHUNK + chunk * _CHUNK
    if (slot >= 0) & (begin < stop) & (first_of_chunk < stop):
        channels = tl.arange(0, BLOCK_X)
        tokens = tl.arange(0, _CHUNK)
        rows = first_of_chunk + tokens
        in_rows = (rows >= begin) & (rows < stop)
        rows = rows.to(tl.int64)
        mask = in_rows[:, None] & (channels < KEY_DIM)[None, :]
        row_size: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
        queries_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY_DIM + rows[:, None] * row_size + channels[None, :]
        is_later, is_after = tokens[:, None] >= tokens[None, :], tokens[:, None] > tokens[None, :]
        # Decays are powers of 2.
        rate, bias = tl.exp(tl.load(a_log_ptr + head)) * _LOG2_E, tl.load(dt_bias_ptr + head)
        of_chunk = tl.full([], program, tl.int64) * HEADS + head
        square_ptr = squares_ptr + of_chunk * (2 * _CHUNK * _CHUNK) + tokens[:, None] * _CHUNK + tokens[None, :]
        factor_ptr = factors_ptr + of_chunk * (4 * _CHUNK) + tokens
        wait_for_inputs(DEPENDENT)
        queries = tl.load(queries_ptr, mask=mask, other=0.0)
        keys = tl.load(queries_ptr + KEY_HEADS * KEY_DIM, mask=mask, other=0.0)
        a = tl.load(a_ptr + rows * a_stride + head, mask=in_rows, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + rows * b_stride + head, mask=in_rows, other=0.0).to(tl.float32)
        log_decay = tl.where(in_rows, -rate * softplus(a + bias), 0.0)
        summed, last = tl.cumsum(log_decay, axis=0), tl.sum(log_decay, axis=0)
        beta = tl.where(in_rows, sigmoid(b), 0.0)
        since_start = tl.exp2(summed)
        # Sums of squares lie on diagonals of products, which take less time than to add them up.
        is_same = tokens[:, None] == tokens[None, :]
        of_queries = tl.dot(queries, tl.trans(queries), input_precision=PRECISION)
        query_norms = scale * tl.rsqrt(tl.sum(tl.where(is_same, of_queries, 0.0), axis=1) + _NORM_EPS)
        met = tl.dot(keys, tl.trans(keys), input_precision=PRECISION)
        key_norms = tl.rsqrt(tl.sum(tl.where(is_same, met, 0.0), axis=1) + _NORM_EPS)
        tl.store(factor_ptr, key_norms * since_start)
        tl.store(factor_ptr + _CHUNK, key_norms * tl.exp2(last - summed))
        tl.store(factor_ptr + 2 * _CHUNK, query_norms * since_start)
        tl.store(factor_ptr + 3 * _CHUNK, tl.exp2(last) + tl.zeros_like(summed))
        # Norms of keys are in the exponent.
        between = summed[:, None] - (summed - tl.log2(key_norms))[None, :]
        decay = tl.exp2(tl.where(is_later, between, float("-inf")))
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * decay * query_norms[:, None]
        tl.store(square_ptr + _CHUNK * _CHUNK, scores.to(square_ptr.dtype.element_ty))
        met = tl.where(is_after, met * decay * key_norms[:, None], 0.0)
        inverse = invert(met, beta, HALF, PRECISION)
        tl.store(square_ptr, inverse.to(square_ptr.dtype.element_ty))
    else:
        # The kernel behind this one waits for this one only: some program of it must have waited for those before.
        wait_for_inputs(DEPENDENT)
