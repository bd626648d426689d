"""Greedy sampling on AITER.

Random draws stay with our own kernels: a seed must give the same tokens on every machine, and AITER neither takes
our uniform numbers nor draws by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend

if TYPE_CHECKING:
    from atom_kernels.sampling.contract import SamplingProblem

# Logits that a lane reads at once, zeros past the end of a row among them (csrc/kernels/sample_kernels.cu).
_VECTOR = 16


def _supports_greedy(problem: SamplingProblem, platform: Any) -> str | None:
    if not problem.greedy:
        return "its samplers take a random number for each logit: a seed would give other tokens than elsewhere"
    if platform.aiter.release == "pypi":
        return "samplers of the release on PyPI run on the default stream, whatever the current one is"
    if problem.vocab_size % _VECTOR:
        return f"reads {_VECTOR} logits at once, and zeros past the end of {problem.vocab_size} might win"
    return platform.aiter.why_not("greedy_sample")


def _bind_greedy(problem: SamplingProblem, weights: Any) -> Callable[..., torch.Tensor]:
    choose = library().bind("greedy_sample", "out", "input")

    def run(logits_BV: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        out_B = torch.empty(logits_BV.shape[0], dtype=torch.int32, device=logits_BV.device)
        if logits_BV.shape[0]:
            # Rows may lie apart, their elements may not.
            choose(out_B, logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous())
        return out_B.long()

    return run


GREEDY_BACKEND = Backend(
    name="aiter",
    implementation="AITER greedy_sample",
    supports=_supports_greedy,
    bind=_bind_greedy,
)
