"""The gated delta rule in Triton, token by token: a program has a sequence, a value head and a block of its columns.

A column of a state meets no other column, so a program holds its columns in registers from the first row to the last:
no bit depends on how these rows are cut into steps, on the rest of the batch, or on which states are kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import NORM_EPS
from atom_kernels.delta.triton.gates import sigmoid, softplus
from atom_kernels.delta.triton.sequences import load_sequence, rows_in_chunks
from atom_kernels.triton.support import wait_for_inputs

_NORM_EPS = tl.constexpr(NORM_EPS)


@triton.jit
def _normed(x):
    """A query or a key, at the norm 1."""
    x = x.to(tl.float32)
    return x / tl.sqrt(tl.sum(x * x, axis=0) + _NORM_EPS)


@triton.jit
def _load_row(
    queries_ptr, values_ptr, a_ptr, b_ptr, a_stride, b_stride, row, is_row, in_channels, in_columns, in_gates,
    ROW_SIZE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """A row's query, key, value, and what makes its decays and beta, for one head; pointers are those of row 0."""
    at = tl.full([], row, tl.int64)
    q = tl.load(queries_ptr + at * ROW_SIZE, mask=in_channels & is_row, other=0.0)
    k = tl.load(queries_ptr + at * ROW_SIZE + KEYS, mask=in_channels & is_row, other=0.0)
    v = tl.load(values_ptr + at * ROW_SIZE, mask=in_columns & is_row, other=0.0)
    a = tl.load(a_ptr + at * a_stride, mask=in_gates & is_row, other=0.0)
    b = tl.load(b_ptr + at * b_stride, mask=is_row, other=0.0)
    return q, k, v, a, b


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def gated_delta_kernel(
    qkv_ptr, a_ptr, b_ptr, out_ptr, states_ptr,
    slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr, a_log_ptr, dt_bias_ptr,
    num_rows, num_sequences, num_kept, a_stride, b_stride, slot_stride, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    CHANNEL_GATES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr,
    SEVERAL_ROWS: tl.constexpr, HAS_CHUNKS: tl.constexpr, BEHIND_CHUNKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of columns, value heads, 2 + sequences (see load_sequence)]``; `scale` is that of queries.

    Without SEVERAL_ROWS no sequence has more than one, and registers are left for more programs.

    Rows of a are `a_stride` elements apart, those of b `b_stride`, and slots of states `slot_stride`.

    With HAS_CHUNKS other kernels compute the rows of `rows_in_chunks`, and this one those before them, or with
    BEHIND_CHUNKS those behind them. Who has rows of a sequence leaves its state where the sequence keeps the last one,
    and the next one takes it there.
    """
    head, place = tl.program_id(1), tl.program_id(2)
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_columns = columns < VALUE_DIM
    begin, stop = first, end
    if HAS_CHUNKS:
        begin_of_chunks, end_of_chunks = rows_in_chunks(first, end, context)
        if BEHIND_CHUNKS:
            begin = end_of_chunks
        else:
            stop = begin_of_chunks
    if slot < 0:
        wait_for_inputs(DEPENDENT)
        if not BEHIND_CHUNKS:
            for row in range(first, end):
                place_in_out = (tl.full([], row, tl.int64) * HEADS + head) * VALUE_DIM
                zeros = tl.zeros([BLOCK_V], out_ptr.dtype.element_ty)
                tl.store(out_ptr + place_in_out + columns, zeros, mask=in_columns)
    elif stop > begin:
        channels = tl.arange(0, BLOCK_X)
        in_channels = channels < KEY_DIM
        rate = tl.exp(tl.load(a_log_ptr + head))
        if CHANNEL_GATES:
            gates, in_gates = head * KEY_DIM + channels, in_channels
        else:
            # The head's one decay, for all of its channels.
            gates, in_gates = head + tl.zeros_like(channels), channels >= 0
        bias = tl.load(dt_bias_ptr + gates, mask=in_gates, other=0.0)
        within = channels[:, None] * VALUE_DIM + columns[None, :]
        mask = in_channels[:, None] & in_columns[None, :]
        size: tl.constexpr = KEY_DIM * VALUE_DIM
        keys: tl.constexpr = KEY_HEADS * KEY_DIM
        row_size: tl.constexpr = 2 * keys + HEADS * VALUE_DIM
        queries_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY_DIM + channels
        values_ptr = qkv_ptr + 2 * keys + head * VALUE_DIM + columns
        gates_ptr, betas_ptr = a_ptr + gates, b_ptr + head
        last_kept_ptr = kept_slots_ptr + place * num_kept - 1
        last_kept = tl.load(last_kept_ptr).to(tl.int64)
        source, goes_on = slot, context > 0
        if BEHIND_CHUNKS:
            source, goes_on = last_kept, True
        wait_for_inputs(DEPENDENT)
        state_ptr = states_ptr + source * slot_stride + head * size + within
        state = tl.load(state_ptr, mask=mask & goes_on & (source >= 0), other=0.0)
        keeps_all = end - first <= num_kept
        if SEVERAL_ROWS:
            q, k, v, a, b = _load_row(
                queries_ptr, values_ptr, gates_ptr, betas_ptr, a_stride, b_stride, begin, True,
                in_channels, in_columns, in_gates, row_size, keys,
            )  # fmt: skip
        for row in range(begin, stop):
            if SEVERAL_ROWS:
                # The next row is on its way while this one is computed.
                coming = _load_row(
                    queries_ptr, values_ptr, gates_ptr, betas_ptr, a_stride, b_stride, row + 1, row + 1 < stop,
                    in_channels, in_columns, in_gates, row_size, keys,
                )  # fmt: skip
            else:
                q, k, v, a, b = _load_row(
                    queries_ptr, values_ptr, gates_ptr, betas_ptr, a_stride, b_stride, row, True,
                    in_channels, in_columns, in_gates, row_size, keys,
                )  # fmt: skip
            key = _normed(k)
            state *= tl.exp(-rate * softplus(a.to(tl.float32) + bias))[:, None]
            delta = sigmoid(b.to(tl.float32)) * (v.to(tl.float32) - tl.sum(state * key[:, None], axis=0))
            state += key[:, None] * delta[None, :]
            out = tl.sum(state * (_normed(q) * scale)[:, None], axis=0).to(out_ptr.dtype.element_ty)
            at = tl.full([], row, tl.int64)
            tl.store(out_ptr + (at * HEADS + head) * VALUE_DIM + columns, out, mask=in_columns)
            kept = last_kept
            if SEVERAL_ROWS:
                behind = tl.where(keeps_all, end - 1 - row, 0)
                kept = tl.load(last_kept_ptr - behind, mask=keeps_all | (row == stop - 1), other=-1).to(tl.int64)
            if kept >= 0:
                tl.store(states_ptr + kept * slot_stride + head * size + within, state, mask=mask)
            if SEVERAL_ROWS:
                q, k, v, a, b = coming
