"""The gated delta rule in Triton, token by token: a program has a sequence, a value head and a block of its columns.

A column of a state meets no other column, so a program holds its columns in registers from the first row to the last:
no bit depends on how a sequence is cut into steps, on the rest of the batch, or on which states are kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.delta.contract import NORM_EPS
from atom_kernels.delta.triton_sequences import load_sequence
from atom_kernels.triton.support import wait_for_inputs

_NORM_EPS = tl.constexpr(NORM_EPS)


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``: with u = exp(-|x|), log(1 + u) is 2 atanh(u / (2 + u)), exact for small u too."""
    u = tl.exp(-tl.abs(x))
    s = u / (u + 2.0)
    s2 = s * s
    p = 2.0 / 15 * s2 + 2.0 / 13
    p = p * s2 + 2.0 / 11
    p = p * s2 + 2.0 / 9
    p = p * s2 + 2.0 / 7
    p = p * s2 + 2.0 / 5
    p = p * s2 + 2.0 / 3
    p = p * s2 + 2.0
    return tl.maximum(x, 0.0) + p * s


@triton.jit
def _load_normed(pointers, mask):
    """A query or a key, at the norm 1."""
    x = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    return x / tl.sqrt(tl.sum(x * x, axis=0) + _NORM_EPS)


@triton.jit(
    do_not_specialize=["num_rows", "num_sequences", "num_kept"],
    do_not_specialize_on_alignment=["slots_ptr", "kept_slots_ptr", "query_start_loc_ptr", "seq_lens_ptr"],
)
def gated_delta_kernel(
    qkv_ptr, a_ptr, b_ptr, out_ptr, states_ptr,
    slots_ptr, kept_slots_ptr, query_start_loc_ptr, seq_lens_ptr, a_log_ptr, dt_bias_ptr,
    num_rows, num_sequences, num_kept, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    CHANNEL_GATES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[blocks of columns, value heads, 2 + sequences (see load_sequence)]``; `scale` is that of queries."""
    head, place = tl.program_id(1), tl.program_id(2)
    first, end, slot, goes_on = load_sequence(
        place, num_rows, num_sequences, slots_ptr, query_start_loc_ptr, seq_lens_ptr
    )
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_columns = columns < VALUE_DIM
    if slot < 0:
        wait_for_inputs(DEPENDENT)
        for row in range(first, end):
            place_in_out = (tl.full([], row, tl.int64) * HEADS + head) * VALUE_DIM
            zeros = tl.zeros([BLOCK_V], out_ptr.dtype.element_ty)
            tl.store(out_ptr + place_in_out + columns, zeros, mask=in_columns)
    elif end > first:
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
        key_head = head // (HEADS // KEY_HEADS)
        wait_for_inputs(DEPENDENT)
        state = tl.load(states_ptr + (slot * HEADS + head) * size + within, mask=mask & goes_on, other=0.0)
        for row in range(first, end):
            at = tl.full([], row, tl.int64)
            of_row = qkv_ptr + at * (2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM)
            q = _load_normed(of_row + key_head * KEY_DIM + channels, in_channels) * scale
            k = _load_normed(of_row + (KEY_HEADS + key_head) * KEY_DIM + channels, in_channels)
            of_head = of_row + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
            v = tl.load(of_head + columns, mask=in_columns, other=0.0).to(tl.float32)
            beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + at * HEADS + head).to(tl.float32)))
            of_gates = a_ptr + at * (HEADS * KEY_DIM if CHANNEL_GATES else HEADS)
            a = tl.load(of_gates + gates, mask=in_gates, other=0.0).to(tl.float32)
            decay = tl.exp(-rate * _softplus(a + bias))
            state *= decay[:, None]
            delta = beta * (v - tl.sum(state * k[:, None], axis=0))
            state += k[:, None] * delta[None, :]
            out = tl.sum(state * q[:, None], axis=0).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + (at * HEADS + head) * VALUE_DIM + columns, out, mask=in_columns)
            behind = end - 1 - row
            is_kept = (behind == 0) | (end - first <= num_kept)
            kept_ptr = kept_slots_ptr + place * num_kept - 1 - behind
            kept = tl.load(kept_ptr, mask=is_kept, other=-1).to(tl.int64)
            if kept >= 0:
                tl.store(states_ptr + (kept * HEADS + head) * size + within, state, mask=mask)
