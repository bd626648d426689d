"""What chunks of the gated delta rule need before any state is known, where each channel of a key has a gate (KDA).

How much of what token j added a later token i meets is a sum over channels of ``k_i k_j exp(g_i - g_j)``, with g the
summed log decays. It is a product of matrices once the exponent is split at a token between the two. So pairs are taken
by the smallest aligned square in whose halves they lie, split at the end of its first half: neither factor is larger
than 1, however strong the gates are.
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
_LOG2_CHUNK = tl.constexpr(CHUNK.bit_length() - 1)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _add_pairs(met, scores, queries, keys, summed, sum_ptr, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """Adds what some channels make of how much a key, or a query, meets of what earlier tokens added.

    Args:
        met, scores: ``[64, 64]`` of keys and of queries; neither gets anything above its diagonal, nor met on it.
        queries, keys, summed: ``[64, some channels]``; the last are log decays to the base 2, summed up to each token.
        sum_ptr: where these sums are for all threads; those of the next token are a chunk's length behind.
    """
    tokens, each = tl.arange(0, _CHUNK), tl.arange(0, summed.shape[1])
    rows, columns = tokens[:, None], tokens[None, :]
    of_token = tl.sum(queries.to(tl.float32) * keys.to(tl.float32), axis=1)
    scores += tl.where(rows == columns, of_token[:, None], 0.0)
    for level in range(_LOG2_CHUNK):
        end_of_first = ((tokens >> level | 1) << level) - 1
        to_middle = tl.exp2(-tl.abs(summed - tl.load(sum_ptr + end_of_first[:, None] * _CHUNK + each[None, :])))
        near_keys, near_queries = (keys * to_middle).to(HALF), (queries * to_middle).to(HALF)
        others = tl.trans(near_keys)
        # The highest bit in which two tokens differ is that of the level.
        is_between = ((rows ^ columns) >> level == 1) & (rows > columns)
        met += tl.where(is_between, tl.dot(near_keys, others, input_precision=PRECISION), 0.0)
        scores += tl.where(is_between, tl.dot(near_queries, others, input_precision=PRECISION), 0.0)
    return met, scores


@triton.jit
def _squares(x):
    x = x.to(tl.float32)
    return tl.sum(x * x, axis=1)


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences"],
    do_not_specialize_on_alignment=["slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def factor_channels_kernel(
    qkv_ptr, a_ptr, b_ptr, tables_ptr, squares_ptr, sums_ptr, decays_ptr,
    slots_ptr, query_start_loc_ptr, seq_lens_ptr, a_log_ptr, dt_bias_ptr, num_rows, num_sequences,
    a_stride, b_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr, MORE: tl.constexpr, HALF: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs, and rows of a and b, are as those of `factor_chunks_kernel`; BLOCK channels are taken at a time.

    They write for each chunk and head, with T = ``(I + A)^-1 beta``, and g the log decays summed up to a token:

    tables ``[3, 64, X]``: ``-T (k exp(g))``, by which tokens read the state; ``k exp(last g - g)``, by which they add
    to it; and ``q exp(g)``, by which queries read it.
    squares ``[2, 64, 64]``: T, and how much of what a token added a later query reads.
    decays ``[X]``: float32, ``exp(last g)``, of the state.

    Before a program writes its squares it keeps sums there: `sums_ptr` is the same memory, SUMS numbers a program.
    """
    head, program = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    place, chunk = find_chunk(  # pyright: ignore[reportGeneralTypeIssues]
        program, num_sequences, query_start_loc_ptr, _CHUNK, MORE
    )
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    begin, stop = rows_in_chunks(first, end, context)
    first_of_chunk = begin - (context + begin - first) % _CHUNK + chunk * _CHUNK
    if (slot >= 0) & (begin < stop) & (first_of_chunk < stop):
        tokens, each = tl.arange(0, _CHUNK), tl.arange(0, BLOCK)
        rows = first_of_chunk + tokens
        in_rows = (rows >= begin) & (rows < stop)
        # Pointers are single ones, and offsets small numbers: many pointers would not leave registers enough.
        first_row = first_of_chunk.to(tl.int64)
        row_size: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
        size: tl.constexpr = _CHUNK * KEY_DIM
        queries_ptr = qkv_ptr + first_row * row_size + head // (HEADS // KEY_HEADS) * KEY_DIM
        keys_ptr = queries_ptr + KEY_HEADS * KEY_DIM
        gates_ptr = a_ptr + first_row * a_stride + head * KEY_DIM
        rate = tl.exp(tl.load(a_log_ptr + head)) * _LOG2_E
        of_chunk = tl.full([], program, tl.int64) * HEADS + head
        table_ptr, square_ptr = tables_ptr + of_chunk * (3 * size), squares_ptr + of_chunk * (2 * _CHUNK * _CHUNK)
        sum_ptr = sums_ptr + of_chunk * SUMS
        within_square, within_sums = (
            tokens[:, None] * _CHUNK + tokens[None, :],
            tokens[:, None] * _CHUNK + each[None, :],
        )
        dtype = qkv_ptr.dtype.element_ty
        wait_for_inputs(DEPENDENT)
        squares_of_queries, squares_of_keys = tl.zeros([_CHUNK], tl.float32), tl.zeros([_CHUNK], tl.float32)
        for first_channel in range(0, BLOCK_X, BLOCK):
            within = tokens[:, None] * row_size + first_channel + each[None, :]
            mask = in_rows[:, None] & (first_channel + each < KEY_DIM)[None, :]
            squares_of_queries += _squares(tl.load(queries_ptr + within, mask=mask, other=0.0))
            squares_of_keys += _squares(tl.load(keys_ptr + within, mask=mask, other=0.0))
        query_norms = scale * tl.rsqrt(squares_of_queries + _NORM_EPS)[:, None]
        key_norms = tl.rsqrt(squares_of_keys + _NORM_EPS)[:, None]
        met, scores = tl.zeros([_CHUNK, _CHUNK], tl.float32), tl.zeros([_CHUNK, _CHUNK], tl.float32)
        for first_channel in range(0, BLOCK_X, BLOCK):
            channels = first_channel + each
            in_channels = channels < KEY_DIM
            mask = in_rows[:, None] & in_channels[None, :]
            within = tokens[:, None] * row_size + channels[None, :]
            at_gates = tokens[:, None] * a_stride + channels[None, :]
            a = tl.load(gates_ptr + at_gates, mask=mask, other=0.0).to(tl.float32)
            bias = tl.load(dt_bias_ptr + head * KEY_DIM + channels, mask=in_channels, other=0.0)
            summed = tl.cumsum(tl.where(mask, -rate * softplus(a + bias[None, :]), 0.0), axis=0)
            # No thread overwrites sums that another has yet to read, nor reads those that are yet to come.
            tl.debug_barrier()
            tl.store(sum_ptr + within_sums, summed)
            tl.debug_barrier()
            # Read back, each thread has those of the channels of its keys.
            summed = tl.load(sum_ptr + within_sums)
            keys = (tl.load(keys_ptr + within, mask=mask, other=0.0) * key_norms).to(HALF)
            queries = (tl.load(queries_ptr + within, mask=mask, other=0.0) * query_norms).to(HALF)
            met, scores = _add_pairs(met, scores, queries, keys, summed, sum_ptr, HALF, PRECISION)
            last = tl.load(sum_ptr + (_CHUNK - 1) * _CHUNK + each)
            since_start, until_end = tl.exp2(summed), tl.exp2(last[None, :] - summed)
            at, in_table = table_ptr + tokens[:, None] * KEY_DIM + channels[None, :], in_channels[None, :]
            tl.store(at, (keys * since_start).to(dtype), mask=in_table)
            tl.store(at + size, (keys * until_end).to(dtype), mask=in_table)
            tl.store(at + 2 * size, (queries * since_start).to(dtype), mask=in_table)
            tl.store(decays_ptr + of_chunk * KEY_DIM + channels, tl.exp2(last), mask=in_channels)
        b = tl.load(b_ptr + rows * b_stride + head, mask=in_rows, other=0.0).to(tl.float32)
        inverse = invert(met, tl.where(in_rows, sigmoid(b), 0.0), HALF, PRECISION).to(dtype)
        tl.debug_barrier()
        tl.store(square_ptr + within_square, inverse)
        tl.store(square_ptr + _CHUNK * _CHUNK + within_square, scores.to(dtype))
        for first_channel in range(0, BLOCK_X, BLOCK):
            read_ptr = table_ptr + tokens[:, None] * KEY_DIM + first_channel + each[None, :]
            in_table = (first_channel + each < KEY_DIM)[None, :]
            reads = tl.dot(inverse, tl.load(read_ptr, mask=in_table, other=0.0), input_precision=PRECISION)
            tl.debug_barrier()
            tl.store(read_ptr, (-reads).to(dtype), mask=in_table)
    else:
        # The kernel behind this one waits for this one only: some program of it must have waited for those before.
        wait_for_inputs(DEPENDENT)
