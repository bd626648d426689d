"""The state of the gated delta rule from chunk to chunk, in Triton: a program has a sequence, a head and some columns.

The state lies transposed, ``[columns, channels]``: products of it, and of what a chunk adds, take what the product
before left in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import CHUNK
from atom_kernels.delta.triton.sequences import first_of_place, load_sequence, rows_in_chunks
from atom_kernels.triton.support import wait_for_inputs

_CHUNK = tl.constexpr(CHUNK)


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def scan_chunks_kernel(
    qkv_ptr, out_ptr, states_ptr, tables_ptr, squares_ptr, factors_ptr,
    slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr,
    num_rows, num_sequences, num_kept, slot_stride,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    CHANNEL_GATES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr, MORE: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of columns, value heads, sequences]``. Slots of states are `slot_stride` elements apart.

    `factor_channels_kernel` tells what it reads with CHANNEL_GATES, where factors are its decays, and else
    `factor_chunks_kernel`, which has no tables: keys and queries are rows as they are given.
    """
    head, place = tl.program_id(1), tl.program_id(2) + 1
    first, end, slot, context = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    begin, stop = rows_in_chunks(first, end, context)
    if (slot >= 0) & (begin < stop):
        kept = tl.load(kept_slots_ptr + place * num_kept - 1).to(tl.int64)
        channels = tl.arange(0, BLOCK_X)
        columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        tokens = tl.arange(0, _CHUNK)
        in_channels, in_columns = channels < KEY_DIM, columns < VALUE_DIM
        row_size: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
        queries_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY_DIM + channels[None, :]
        keys_ptr = queries_ptr + KEY_HEADS * KEY_DIM
        values_ptr = qkv_ptr + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + columns[None, :]
        outs_ptr = out_ptr + head * VALUE_DIM + columns[:, None]
        within = channels[None, :] * VALUE_DIM + columns[:, None]
        in_state = in_columns[:, None] & in_channels[None, :]
        size: tl.constexpr = KEY_DIM * VALUE_DIM
        square = tokens[:, None] * _CHUNK + tokens[None, :]
        of_chunk = tl.full([], first_of_place(place, first, _CHUNK, MORE), tl.int64) * HEADS + head
        first_of_chunks = begin - (context + begin - first) % _CHUNK
        num_chunks = tl.cdiv(stop - first_of_chunks, _CHUNK)
        dtype = qkv_ptr.dtype.element_ty
        wait_for_inputs(DEPENDENT)
        # Rows that went before these left their state where the sequence keeps its last one.
        source = tl.where(begin > first, kept, slot)
        goes_on = ((begin > first) | (context > 0)) & (source >= 0)
        state_ptr = states_ptr + source * slot_stride + head * size + within
        state = tl.load(state_ptr, mask=in_state & goes_on, other=0.0)
        for chunk in tl.range(0, num_chunks, num_stages=STAGES):
            rows = first_of_chunks + chunk * _CHUNK + tokens
            in_rows = (rows >= begin) & (rows < stop)
            rows = rows.to(tl.int64)
            at = of_chunk + chunk * HEADS
            inverse = tl.load(squares_ptr + at * (2 * _CHUNK * _CHUNK) + square)
            scores = tl.load(squares_ptr + (2 * at + 1) * (_CHUNK * _CHUNK) + square)
            mask = in_rows[:, None] & in_columns[None, :]
            values = tl.load(values_ptr + rows[:, None] * row_size, mask=mask, other=0.0)
            before = state.to(dtype)
            if CHANNEL_GATES:
                table_ptr = tables_ptr + at * (3 * _CHUNK * KEY_DIM) + tokens[:, None] * KEY_DIM + channels[None, :]
                reads = tl.load(table_ptr, mask=in_channels[None, :], other=0.0)
                keys = tl.load(table_ptr + _CHUNK * KEY_DIM, mask=in_channels[None, :], other=0.0)
                queries = tl.load(table_ptr + 2 * _CHUNK * KEY_DIM, mask=in_channels[None, :], other=0.0)
                decay = tl.load(factors_ptr + at * KEY_DIM + channels, mask=in_channels, other=0.0)[None, :]
                added = tl.dot(tl.trans(values), tl.trans(inverse), input_precision=PRECISION)
                added = tl.dot(before, tl.trans(reads), added, input_precision=PRECISION)
                update = added
                out = tl.dot(before, tl.trans(queries), input_precision=PRECISION)
            else:
                mask = in_rows[:, None] & in_channels[None, :]
                keys = tl.load(keys_ptr + rows[:, None] * row_size, mask=mask, other=0.0)
                queries = tl.load(queries_ptr + rows[:, None] * row_size, mask=mask, other=0.0)
                factors = factors_ptr + at * (4 * _CHUNK)
                reads, adds = tl.load(factors + tokens), tl.load(factors + _CHUNK + tokens)
                asks, decay = tl.load(factors + 2 * _CHUNK + tokens), tl.load(factors + 3 * _CHUNK)
                said = tl.dot(before, tl.trans(keys), input_precision=PRECISION)
                wrong = tl.trans(values).to(tl.float32) - said * reads[None, :]
                added = tl.dot(wrong.to(dtype), tl.trans(inverse), input_precision=PRECISION)
                update = added * adds[None, :]
                out = tl.dot(before, tl.trans(queries), input_precision=PRECISION) * asks[None, :]
            out = tl.dot(added.to(dtype), tl.trans(scores), out, input_precision=PRECISION)
            state = tl.dot(update.to(dtype), keys, state * decay, input_precision=PRECISION)
            mask = in_columns[:, None] & in_rows[None, :]
            tl.store(outs_ptr + rows[None, :] * (HEADS * VALUE_DIM), out.to(out_ptr.dtype.element_ty), mask=mask)
        if kept >= 0:
            tl.store(states_ptr + kept * slot_stride + head * size + within, state, mask=in_state)
    else:
        # The kernel behind this one waits for this one only: some program of it must have waited for those before.
        wait_for_inputs(DEPENDENT)
