"""Drawing tokens and random numbers by our own C kernels, on tensors of the host."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch

from atom_kernels.native import load_native, native_unavailable
from atom_kernels.sampling.contract import SamplingTables

_SIGNATURES = {
    "sample_rows": "plll" + "pppppp" + "p",
    "philox_uniforms": "pppppl",
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


def sample_slots_by_native(
    logits_BV: torch.Tensor, slots_B: torch.Tensor, positions_B: torch.Tensor, *tables_S: torch.Tensor, filters: bool
) -> torch.Tensor:
    """`sample_slots`: the kernels read the tables."""
    tables, slots_B = SamplingTables(*tables_S), _as(slots_B, torch.int64)
    uniform_B = philox_by_native(tables.seed, tables.sample_index, positions_B, slots_B)
    left_out = (tables.top_k, tables.top_p, tables.min_p) if filters else (None, None, None)
    return sample_by_native(logits_BV, uniform_B, tables.temperature, *left_out, slots_B=slots_B)


def sample_by_native(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_S: torch.Tensor,
    top_k_S: torch.Tensor | None,
    top_p_S: torch.Tensor | None,
    min_p_S: torch.Tensor | None,
    *,
    slots_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """`sample`, in one call.

    Args:
        temperature_S, top_k_S, top_p_S, min_p_S: a parameter for each slot; without a filter's it leaves nothing out.
        slots_B: the slot of each row; None where row and slot are one.
    """
    if logits_BV.dtype is not torch.float32 or logits_BV.stride(1) != 1:
        logits_BV = logits_BV.float().contiguous()
    num_rows, vocab_size = logits_BV.shape
    # The tuple keeps them until the call is over: a conversion may have made a new tensor.
    rows = (
        slots_B if slots_B is None else _as(slots_B, torch.int64),
        _as(uniform_B, torch.float64),
        _as(temperature_S, torch.float32),
        top_k_S if top_k_S is None else _as(top_k_S, torch.int32),
        top_p_S if top_p_S is None else _as(top_p_S, torch.float32),
        min_p_S if min_p_S is None else _as(min_p_S, torch.float32),
    )
    tokens_B = torch.empty(num_rows, dtype=torch.int64)
    _functions().sample_rows(
        logits_BV.data_ptr(),
        logits_BV.stride(0),
        num_rows,
        vocab_size,
        *map(_address, rows),
        tokens_B.data_ptr(),
    )
    return tokens_B


def philox_by_native(
    seed_S: torch.Tensor,
    sample_index_S: torch.Tensor,
    position_B: torch.Tensor,
    slots_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """`philox_uniform`, in one call, of the seeds and samples of slots as `sample_by_native` takes them."""
    rows = (
        _as(seed_S, torch.int64),
        _as(sample_index_S, torch.int64),
        slots_B if slots_B is None else _as(slots_B, torch.int64),
        _as(position_B, torch.int64),
    )
    uniform_B = torch.empty(position_B.shape, dtype=torch.float64)
    _functions().philox_uniforms(*map(_address, rows), uniform_B.data_ptr(), uniform_B.numel())
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
        ids_n.shape[0],
        padding_slot,
        not_finite,
    )


def _as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype is dtype and x.is_contiguous() else x.to(dtype).contiguous()


def _address(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
