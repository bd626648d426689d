"""Drawing tokens and random numbers by our own C kernels, on tensors of the host."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch

from atom_kernels.native import load_native, native_unavailable

_SIGNATURES = {
    "sample_rows": "plll" + "ppppp" + "p",
    "philox_uniforms": "ppppl",
    "accept_draws": "ppllppp" + "lplll",
}


def unavailable() -> str | None:
    """None if the kernels can be used here, else the reason in one line."""
    return native_unavailable("sampling")


def where_it_compiles(problem: object, platform: object) -> str | None:
    """What a backend `supports` that is one of these kernels."""
    return unavailable()


@cache
def _functions() -> SimpleNamespace:
    return load_native("sampling", _SIGNATURES)


def sample_by_native(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """`sample`, in one call."""
    if logits_BV.dtype is not torch.float32 or logits_BV.stride(1) != 1:
        logits_BV = logits_BV.float().contiguous()
    num_rows, vocab_size = logits_BV.shape
    # The tuple keeps them until the call is over: a conversion may have made a new tensor.
    rows = (
        _as(uniform_B, torch.float64),
        _as(temperature_B, torch.float32),
        _as(top_k_B, torch.int64),
        _as(top_p_B, torch.float32),
        _as(min_p_B, torch.float32),
    )
    tokens_B = torch.empty(num_rows, dtype=torch.int64)
    _functions().sample_rows(
        logits_BV.data_ptr(),
        logits_BV.stride(0),
        num_rows,
        vocab_size,
        *(row.data_ptr() for row in rows),
        tokens_B.data_ptr(),
    )
    return tokens_B


def philox_by_native(seed_B: torch.Tensor, sample_index_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
    """`philox_uniform`, in one call."""
    rows = tuple(_as(x, torch.int64) for x in (seed_B, sample_index_B, position_B))
    uniform_B = torch.empty(seed_B.shape, dtype=torch.float64)
    _functions().philox_uniforms(*(row.data_ptr() for row in rows), uniform_B.data_ptr(), uniform_B.numel())
    return uniform_B


def accept_by_native(
    ids_n: torch.Tensor,
    logits_nV: torch.Tensor,
    slots_n: torch.Tensor,
    positions_n: torch.Tensor,
    history_SL: torch.Tensor,
    num_rejected_S: torch.Tensor,
    *,
    padding_slot: int,
    not_finite: int,
) -> None:
    """`accept_draws`, in one call."""
    slots_n, positions_n = _as(slots_n, torch.int64), _as(positions_n, torch.int64)
    _functions().accept_draws(
        ids_n.data_ptr(),
        logits_nV.data_ptr(),
        logits_nV.stride(0),
        logits_nV.stride(1),
        slots_n.data_ptr(),
        positions_n.data_ptr(),
        history_SL.data_ptr(),
        history_SL.stride(0),
        num_rejected_S.data_ptr(),
        len(ids_n),
        padding_slot,
        not_finite,
    )


def _as(x_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x_B if x_B.dtype is dtype and x_B.is_contiguous() else x_B.to(dtype).contiguous()
