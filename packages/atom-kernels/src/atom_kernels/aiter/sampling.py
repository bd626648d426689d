"""Sampling on AITER: the best token, and the race of exponentials by which ATOM samples.

`sample` itself stays with our own kernels: a seed must give the same tokens on every machine, and AITER neither takes
our uniform numbers nor draws by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_kernels.sampling.ops import SamplingProblem
    from atom_kernels.sampling.race import RaceProblem

# Logits that a lane reads at once, zeros past the end of a row among them (csrc/kernels/sample_kernels.cu).
_GREEDY_VECTOR, _RACE_VECTOR = 16, 4


def _why_not(function: str, vocab_size: int, vector: int, platform: Platform) -> str | None:
    if platform.aiter is None:
        return "no AITER"
    if platform.aiter.release == "pypi":
        return "samplers of the release on PyPI run on the default stream, whatever the current one is"
    if vocab_size % vector:
        return f"reads {vector} logits at once, and zeros past the end of {vocab_size} might win"
    return platform.aiter.why_not(function)


def _supports_greedy(problem: SamplingProblem, platform: Platform) -> str | None:
    if not problem.greedy:
        return "its samplers take a random number for each logit: a seed would give other tokens than elsewhere"
    return _why_not("greedy_sample", problem.vocab_size, _GREEDY_VECTOR, platform)


def _bind_greedy(problem: SamplingProblem, weights: Any) -> Callable[..., torch.Tensor]:
    choose = library().bind("greedy_sample", "out", "input")

    def run(logits_BV: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        out_B = torch.empty(logits_BV.shape[0], dtype=torch.int32, device=logits_BV.device)
        if logits_BV.shape[0]:
            choose(out_B, _with_rows(logits_BV))
        return out_B.long()

    return run


def _with_rows(x_BV: torch.Tensor) -> torch.Tensor:
    """Rows may lie apart, their elements may not."""
    return x_BV if x_BV.stride(1) == 1 else x_BV.contiguous()


def _bind_race(problem: RaceProblem, weights: Any) -> Callable[..., torch.Tensor]:
    race = library().bind(
        "mixed_sample_outer_exponential", "out", "input", "exponentials", "temperature", eps=problem.eps
    )

    def run(logits_BV: torch.Tensor, exponentials_BV: torch.Tensor, temperature_B: torch.Tensor) -> torch.Tensor:
        if exponentials_BV.dtype is not torch.float32 or temperature_B.dtype is not torch.float32:
            raise TypeError(f"noise and temperatures are float32, not {exponentials_BV.dtype}, {temperature_B.dtype}")
        out_B = torch.empty(logits_BV.shape[0], dtype=torch.int32, device=logits_BV.device)
        if logits_BV.shape[0]:
            race(out_B, _with_rows(logits_BV), _with_rows(exponentials_BV), temperature_B.contiguous())
        return out_B.long()

    return run


GREEDY_BACKEND = Backend(
    name="aiter",
    implementation="AITER greedy_sample",
    supports=_supports_greedy,
    bind=_bind_greedy,
)
RACE_BACKEND = Backend(
    name="aiter",
    implementation="AITER mixed_sample_outer_exponential",
    supports=lambda problem, platform: _why_not(
        "mixed_sample_outer_exponential", problem.vocab_size, _RACE_VECTOR, platform
    ),
    bind=_bind_race,
)
