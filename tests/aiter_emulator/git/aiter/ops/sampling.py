"""Sampling from probabilities; this module is imported by name, `aiter` does not export it."""

from torch import Tensor

from tests.aiter_emulator.semantics import sampling
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def top_k_renorm_probs(
    probs: Tensor,
    maybe_top_k_arr: Tensor | None,
    top_k_val: int,
) -> Tensor:
    return sampling.top_k_renorm_probs(probs, maybe_top_k_arr, top_k_val)


@emulated
def top_p_sampling_from_probs(
    probs: Tensor,
    indices: Tensor,
    maybe_top_p_arr: Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> Tensor:
    return sampling.top_p_sampling_from_probs(probs, indices, maybe_top_p_arr, top_p_val)


@emulated
def top_k_top_p_sampling_from_probs(
    probs: Tensor,
    indices: Tensor,
    maybe_top_k_arr: Tensor | None,
    top_k_val: int,
    maybe_top_p_arr: Tensor | None,
    top_p_val: float,
    deterministic: bool = False,
) -> Tensor:
    return sampling.top_k_top_p_sampling_from_probs(
        probs, indices, maybe_top_k_arr, top_k_val, maybe_top_p_arr, top_p_val
    )
