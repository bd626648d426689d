"""The gated delta rule in torch: pieces of a sequence as products of matrices.

A piece ends where a chunk of its sequence does, and nothing but its own rows is computed with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from atom_kernels.delta.contract import (
    CHUNK,
    MAX_TOKEN_BY_TOKEN,
    GatedDeltaProblem,
    check_kept,
    check_last_is_kept,
    delta_inputs,
)
from atom_kernels.delta.sequences import Rows, rows_of_sequences

# With gates of channels the decay between two tokens is a vector: smaller chunks keep all of them in reach.
_CHANNELS_CHUNK = 16


def bind_gated_delta(problem: GatedDeltaProblem, weights: Any) -> Callable[..., None]:
    """`gated_delta` with its weights."""
    a_log_H, dt_bias_G = weights["a_log"], weights["dt_bias"]
    chunk = _CHANNELS_CHUNK if problem.channel_gates else CHUNK

    def run(
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
    ) -> None:
        out_THV.zero_()
        check_kept(kept_slots_SJ)
        for rows in rows_of_sequences(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S):
            check_last_is_kept(rows)
            state_HXV = states_NHXV[rows.slot]
            if rows.context == 0:
                state_HXV = torch.zeros_like(state_HXV)
            for first, end in _pieces(rows, chunk):
                # torch's exp() in the last lanes of a tensor is another than before: each piece is taken alone.
                piece = delta_inputs(problem, qkv_TC[first:end], a_TG[first:end], b_TH[first:end], a_log_H, dt_bias_G)
                out_nHV, state_HXV = _one_chunk(*piece, state_HXV)
                out_THV[first:end] = out_nHV.to(out_THV.dtype)
                if end - 1 in rows.kept:
                    states_NHXV[rows.kept[end - 1]] = state_HXV

    return run


def _pieces(rows: Rows, size: int) -> Iterator[tuple[int, int]]:
    """First rows and ends of what is computed at once: `size` rows of a chunk, or one where the step has few of it."""
    first, context = rows.first, rows.context
    while first < rows.end:
        end = min(first + CHUNK - context % CHUNK, rows.end)
        step = 1 if end - first <= MAX_TOKEN_BY_TOKEN else size
        while first < end:
            piece_end = min(first + step - context % step, end)
            yield first, piece_end
            first, context = piece_end, context + piece_end - first


def _one_chunk(
    q_nHX: torch.Tensor,
    k_nHX: torch.Tensor,
    v_nHV: torch.Tensor,
    log_decay_nHg: torch.Tensor,
    beta_nH: torch.Tensor,
    state_HXV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of n tokens and the state behind them.

    What tokens add, D, solves ``(I + A) D = beta (V - decayed K S)``. A is strictly lower triangular: how much of
    what an earlier token added a later key meets.
    """
    q, k, v = (x.transpose(0, 1) for x in (q_nHX, k_nHX, v_nHV))
    beta = beta_nH.T[..., None]
    summed_Hng = log_decay_nHg.transpose(0, 1).cumsum(1)
    later = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool, device=k.device).tril()
    between_Hnng = (summed_Hng[:, :, None] - summed_Hng[:, None]).masked_fill(~later[..., None], float("-inf")).exp()
    if between_Hnng.shape[-1] == 1:
        between = between_Hnng[..., 0]
        keys, queries = (k @ k.mT) * between, (q @ k.mT) * between
    else:
        keys = torch.einsum("hix,hjx,hijx->hij", k, k, between_Hnng)
        queries = torch.einsum("hix,hjx,hijx->hij", q, k, between_Hnng)
    since_start = summed_Hng.exp()
    wanted_HnV = beta * (v - (k * since_start) @ state_HXV)
    delta_HnV = torch.linalg.solve_triangular(beta * keys, wanted_HnV, upper=False, unitriangular=True)
    out_HnV = (q * since_start) @ state_HXV + queries @ delta_HnV
    last_Hg = summed_Hng[:, -1]
    until_end = (last_Hg[:, None] - summed_Hng).exp()
    return out_HnV.transpose(0, 1), state_HXV * last_Hg.exp()[..., None] + (k * until_end).mT @ delta_HnV
