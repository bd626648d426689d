"""The activations through Triton, as backends of their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation.contract import ActivationProblem, GatedActivationProblem
from atom_kernels.activation.names import Activation
from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# What `triton_kernels.gated` and `activated` compute.
_ACTIVATIONS = (
    *(Activation.SILU, Activation.GELU, Activation.GELU_TANH, Activation.QUICK_GELU),
    *(Activation.RELU, Activation.RELU2, Activation.SWIGLU_OAI),
)
_BLOCK = 1024


def why_not_in_triton(activation: str) -> str | None:
    """None if the Triton kernels compute an activation, else the reason."""
    return None if activation in _ACTIVATIONS else f"computes {', '.join(_ACTIVATIONS)}, not {activation}"


def _supports(problem: ActivationProblem | GatedActivationProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS) or why_not_in_triton(problem.activation)


def _bind_gated(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.activation.triton_kernels import gated_activation_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    size, name = problem.intermediate_size, str(problem.activation)
    block = min(_BLOCK, power_of_two(size))
    num_blocks, options = -(-size // block), dependent_launch()

    def run(x: torch.Tensor) -> torch.Tensor:
        problem.check_input(x)
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], size))
        num_rows = x.numel() // (2 * size)
        if num_rows:
            launch(
                gated_activation_kernel, (num_rows, num_blocks), x, out, problem.alpha, problem.limit,
                SIZE=size, ACTIVATION=name, BLOCK=block, **options,
            )  # fmt: skip
        return out

    return run


def _bind_ungated(problem: ActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.activation.triton_kernels import activation_kernel
    from atom_kernels.triton.support import dependent_launch

    name, dtype, options = str(problem.activation), problem.dtype, dependent_launch()

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != problem.size:
            raise unplanned(name, x, problem.size, dtype)
        x = x.contiguous()
        out, count = torch.empty_like(x), x.numel()
        if count:
            launch(activation_kernel, (-(-count // _BLOCK),), x, out, count, ACTIVATION=name, BLOCK=_BLOCK, **options)
        return out

    return run


ACTIVATION_BACKEND = Backend(name="triton", implementation="Triton activation", supports=_supports, bind=_bind_ungated)
GATED_BACKEND = Backend(name="triton", implementation="Triton gated activation", supports=_supports, bind=_bind_gated)
