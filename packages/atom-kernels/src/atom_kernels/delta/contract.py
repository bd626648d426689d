"""What the operators of a delta net compute, in plain torch.

T: rows (tokens) of a step, S: its sequences, N: slots, J: states that a sequence may keep, C: channels, W: width of the
convolution, P: W - 1, H: value heads, X: key dim, V: value dim, G: gates of a row.

Both operators read a step alike. Row ``query_start_loc[s]`` is the first of sequence s. A sequence goes on from the
state in ``slots[s]``; one that begins in this step (all of its tokens are in it) starts from zeros, whatever its slot
holds. A slot of -1 pads the batch: the rows become 0, and no state is read or written.

``kept_slots[s, j]`` gets the state behind row ``J - 1 - j`` from the sequence's end: the last column the state that it
leaves, and those before it the states that it had, one for each draft that may be rejected. -1 keeps nothing. A
sequence of more than J rows keeps only its last state: its other columns are not read. The delta rule may put the
state of a sequence of more than 16 rows there in between, so that one must not be -1. A sequence's state is read before
any is kept, so it may be kept where it was found (``kept_slots = slots[:, None]`` updates in place). A slot that one
sequence keeps is named by no other. Slots may lie apart: each is contiguous, and what is between them is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.delta.sequences import Rows, rows_of_sequences
from atom_kernels.protocols import Slots

# Added to the sum of squares by which queries and keys are normed.
NORM_EPS = 1e-6
# Chunks of a sequence are counted from its first token, in pieces that divide this many.
CHUNK = Slots.hand_over
# So many rows of a sequence, and fewer, are computed token by token. No more states can be kept of a sequence.
MAX_TOKEN_BY_TOKEN = Slots.most_each


@dataclass(frozen=True)
class ShortConvProblem:
    """A depthwise causal convolution over `width` tokens, followed by SiLU."""

    channels: int
    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class GatedDeltaProblem:
    """`num_value_heads` is a multiple of `num_key_heads`: value head h reads key head ``h // (value / key heads)``.

    With `channel_gates` each channel of a key decays by a gate of its own (KDA), else each value head has one.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    channel_gates: bool = False

    def __post_init__(self) -> None:
        if self.num_key_heads < 1 or self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"{self.num_value_heads} value heads cannot share {self.num_key_heads} key heads evenly: "
                "num_value_heads must be a multiple of num_key_heads"
            )

    @property
    def channels(self) -> int:
        """Channels of a row: its queries, keys and values."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def gates(self) -> int:
        """How many decays a row has."""
        return self.num_value_heads * (self.key_dim if self.channel_gates else 1)


def short_conv(
    x_TC: torch.Tensor,
    out_TC: torch.Tensor,
    states_NCP: torch.Tensor,
    slots_S: torch.Tensor,
    kept_slots_SJ: torch.Tensor,
    query_start_loc_S1: torch.Tensor,
    seq_lens_S: torch.Tensor,
    weight_CW: torch.Tensor,
) -> None:
    """``out[t, c] = silu(sum_j weight[c, j] * x[t - W + 1 + j, c])`` within each sequence, in float32, rounded once.

    Args:
        x_TC: a step's rows, packed: all of the first sequence, then all of the next.
        out_TC: gets the outputs; rows of no sequence, or of one without a slot, become 0.
        states_NCP: the last ``W - 1`` inputs of each slot's sequence, oldest first, in x's dtype.
        slots_S: int32, the slot from which each sequence goes on; -1 pads the batch.
        kept_slots_SJ: int32, the slots that get the states behind its last rows; -1 keeps nothing.
        query_start_loc_S1: int32, the first row of each sequence, and the end of the last one.
        seq_lens_S: int32, tokens of each sequence, those of this step included.
        weight_CW: one filter for each channel; the last column meets the token itself.

    Gu and Dao 2023, "Mamba", https://arxiv.org/abs/2312.00752, section 3.4, for where such a convolution stands.
    """
    before_width = weight_CW.shape[1] - 1
    weight_WC1 = weight_CW.float().T[..., None]
    out_TC.zero_()
    for rows in rows_of_sequences(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S):
        state_CP = states_NCP[rows.slot]
        before = torch.zeros_like(state_CP) if rows.context == 0 else state_CP
        inputs_CL = torch.cat([before, x_TC[rows.first : rows.end].T], dim=1)
        num_rows = rows.end - rows.first
        summed_Cn = inputs_CL[:, :num_rows].float() * weight_WC1[0]
        for j in range(1, before_width + 1):
            summed_Cn = summed_Cn + inputs_CL[:, j : j + num_rows].float() * weight_WC1[j]
        # In float64, for torch's float32 exp() in the last lanes of a tensor is another than before.
        out_TC[rows.first : rows.end] = torch.nn.functional.silu(summed_Cn.double()).T.float().to(out_TC.dtype)
        for row, slot in rows.kept.items():
            states_NCP[slot] = inputs_CL[:, row - rows.first + 1 :][:, :before_width]


def gated_delta(
    problem: GatedDeltaProblem,
    qkv_TC: torch.Tensor,
    a_TG: torch.Tensor,
    b_TH: torch.Tensor,
    out_THV: torch.Tensor,
    states_NHXV: torch.Tensor,
    slots_S: torch.Tensor,
    kept_slots_SJ: torch.Tensor,
    query_start_loc_S1: torch.Tensor,
    seq_lens_S: torch.Tensor,
    max_query_len: int,
    a_log_H: torch.Tensor,
    dt_bias_G: torch.Tensor,
) -> None:
    """The gated delta rule, token by token: each sequence's state S decays, is corrected by what it says wrong of the
    token's key, and is read by the token's query.

    For each token and value head, in float32::

        q, k = q / sqrt(sum(q^2) + 1e-6) * X^-0.5, k / sqrt(sum(k^2) + 1e-6)
        decay = exp(-exp(a_log) * softplus(a + dt_bias));  beta = sigmoid(b)
        S = decay * S;  S = S + k (beta * (v - S^T k))^T;  out = S^T q

    Args:
        problem: sizes, and what a gate decays.
        qkv_TC: a step's rows, packed: the queries of all key heads, their keys, then the values of all value heads.
        a_TG: the gates' inputs, one for each value head, or with `channel_gates` one for each of its key channels.
        b_TH: the inputs of beta.
        out_THV: gets the outputs, rounded once; rows of no sequence, or of one without a slot, become 0.
        states_NHXV: float32, S of each slot's sequence.
        slots_S: int32, the slot from which each sequence goes on; -1 pads the batch.
        kept_slots_SJ: int32, the slots that get the states behind its last rows; -1 keeps nothing. J is at most 16.
        query_start_loc_S1: int32, the first row of each sequence, and the end of the last one.
        seq_lens_S: int32, tokens of each sequence, those of this step included.
        max_query_len: no sequence has more rows in this step. It spares launches and changes no bit.
        a_log_H: float32.
        dt_bias_G: float32, of the shape of a row of a.

    A backend may compute many tokens at once. It counts its chunks from the sequence's first token, in pieces that
    divide 64: a state that is handed over behind a multiple of 64 tokens, from one step to another, leaves no trace in
    any bit, and neither does the rest of the batch. What a step has of a chunk, if it is 16 rows or fewer, is computed
    token by token: drafts leave no trace either.

    Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", https://arxiv.org/abs/2412.06464; gates of channels: Kimi
    Team 2025, "Kimi Linear", https://arxiv.org/abs/2510.26692.
    """
    out_THV.zero_()
    check_kept(kept_slots_SJ)
    for rows in rows_of_sequences(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S):
        check_last_is_kept(rows)
        state_HXV = states_NHXV[rows.slot].clone()
        if rows.context == 0:
            state_HXV.zero_()
        taken = slice(rows.first, rows.end)
        q, k, v, log_decay, beta = delta_inputs(problem, qkv_TC[taken], a_TG[taken], b_TH[taken], a_log_H, dt_bias_G)
        for row in range(rows.end - rows.first):
            state_HXV = state_HXV * log_decay[row].exp()[..., None]
            said_HV = torch.einsum("hxv,hx->hv", state_HXV, k[row])
            delta_HV = beta[row][:, None] * (v[row] - said_HV)
            state_HXV = state_HXV + k[row][..., None] * delta_HV[:, None]
            out_THV[rows.first + row] = torch.einsum("hxv,hx->hv", state_HXV, q[row]).to(out_THV.dtype)
            if rows.first + row in rows.kept:
                states_NHXV[rows.kept[rows.first + row]] = state_HXV


def check_kept(kept_slots_SJ: torch.Tensor) -> None:
    """Raises ValueError if more states are to be kept of a sequence than are computed token by token."""
    if kept_slots_SJ.shape[1] > MAX_TOKEN_BY_TOKEN:
        raise ValueError(
            f"kept_slots names {kept_slots_SJ.shape[1]} states of each sequence, and at most {MAX_TOKEN_BY_TOKEN} "
            f"can be kept: propose at most {MAX_TOKEN_BY_TOKEN - 1} drafts"
        )


def check_last_is_kept(rows: Rows) -> None:
    """Raises ValueError for a sequence of more rows than go token by token, if its last state is not kept."""
    num_rows = rows.end - rows.first
    if num_rows > MAX_TOKEN_BY_TOKEN and rows.end - 1 not in rows.kept:
        raise ValueError(
            f"kept_slots keeps no state of a sequence of {num_rows} rows: name a slot for the last state of each "
            f"sequence of more than {MAX_TOKEN_BY_TOKEN} rows"
        )


def delta_inputs(
    problem: GatedDeltaProblem,
    qkv_TC: torch.Tensor,
    a_TG: torch.Tensor,
    b_TH: torch.Tensor,
    a_log_H: torch.Tensor,
    dt_bias_G: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys ``[T, H, X]``, values ``[T, H, V]``, log decays ``[T, H, X or 1]``, beta ``[T, H]``: float32."""
    keys, heads, size = problem.num_key_heads, problem.num_value_heads, problem.key_dim
    q, k, v = qkv_TC.float().split([keys * size, keys * size, heads * problem.value_dim], dim=1)

    def normed(x: torch.Tensor) -> torch.Tensor:
        x_TKX = x.reshape(-1, keys, size)
        scale = torch.rsqrt(x_TKX.square().sum(-1, keepdim=True) + NORM_EPS)
        return (x_TKX * scale).repeat_interleave(heads // keys, dim=1)

    rates_THg = torch.nn.functional.softplus(a_TG.float() + dt_bias_G).reshape(len(a_TG), heads, -1)
    log_decay_THg = -a_log_H.exp()[:, None] * rates_THg
    return (
        normed(q) * size**-0.5,
        normed(k),
        v.reshape(-1, heads, problem.value_dim),
        log_decay_THg,
        b_TH.float().sigmoid(),
    )
