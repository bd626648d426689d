"""Gated activations on AITER: gate and up are the halves of a row, in GPT-OSS's swiglu as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend
from atom_kernels.powers_of_two import power_of_two

if TYPE_CHECKING:
    from atom_kernels.activation.contract import GatedActivationProblem
    from atom_kernels.platform import Platform

_HALVES = (torch.bfloat16, torch.float16)
# Elements that a lane takes at once, at most (csrc/kernels/activation_kernels.cu).
_WIDEST = 8
# By the values of `Activation`, whose package imports this module.
_FUNCTIONS = {
    "silu": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
    "swiglu_oai": "swiglu_and_mul",
}
# swiglu_and_mul has these built in.
_ALPHA, _LIMIT = 1.702, 7.0


def _supports(problem: GatedActivationProblem, platform: Platform) -> str | None:
    api = api_of(platform)
    if problem.activation not in _FUNCTIONS:
        return f"computes {', '.join(_FUNCTIONS)}, not {problem.activation}"
    is_pypi = api.release == "pypi"
    if problem.dtype not in (_HALVES if is_pypi else (*_HALVES, torch.float32)):
        return f"takes bfloat16, float16{'' if is_pypi else ' and float32'}, not {problem.dtype}"
    return (
        api.why_not(_FUNCTIONS[problem.activation])
        or _why_not_size(problem, is_pypi)
        or (_why_not_interleaved(problem, platform) if problem.activation == "swiglu_oai" else None)
    )


def _why_not_size(problem: GatedActivationProblem, is_pypi: bool) -> str | None:
    """Rows are written in whole vectors, which may pass the end of a row (in sources from git, its next 4 bytes)."""
    size = problem.intermediate_size
    vector = min(_WIDEST, max(1 if is_pypi else 2, power_of_two(size // 64)))
    return f"writes {vector} elements at once, and so past the end of a row of {size}" if size % vector else None


def _why_not_interleaved(problem: GatedActivationProblem, platform: Platform) -> str | None:
    if (problem.alpha, problem.limit) != (_ALPHA, _LIMIT):
        return f"alpha {_ALPHA:g} and limit {_LIMIT:g} are built in, not {problem.alpha:g} and {problem.limit:g}"
    if platform.why_not("triton") is None:
        return "gate and up would have to be moved into halves; Triton's kernel reads them as they lie"
    return None


def _bind(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    size, is_interleaved = problem.intermediate_size, problem.activation == "swiglu_oai"
    activate = library().bind(_FUNCTIONS[problem.activation], "out", "input")

    def run(x: torch.Tensor) -> torch.Tensor:
        problem.check_input(x)
        halves = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1) if is_interleaved else x.contiguous()
        out = x.new_empty((*x.shape[:-1], size))
        if out.numel():
            activate(out, halves)
        return out

    return run


GATED_BACKEND = Backend(name="aiter", implementation="AITER gated activation", supports=_supports, bind=_bind)
