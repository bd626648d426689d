"""The activations through Triton, as backends of their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation.contract import ActivationProblem, GatedActivationProblem
from atom_kernels.activation.names import Activation
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.launch import launch
from atom_kernels.operator import Backend

# What `triton_kernels.gated` and `activated` compute.
_ACTIVATIONS = (
    *(Activation.SILU, Activation.GELU, Activation.GELU_TANH),
    *(Activation.RELU, Activation.RELU2, Activation.SWIGLU_OAI),
)
_BLOCK = 1024


def why_not_in_triton(activation: str) -> str | None:
    """None if the Triton kernels compute an activation, else the reason."""
    return None if activation in _ACTIVATIONS else f"computes {', '.join(_ACTIVATIONS)}, not {activation}"


def _supports(problem: ActivationProblem | GatedActivationProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS)


def _supports_ungated(problem: ActivationProblem, platform: Any) -> str | None:
    return why_not_in_triton(problem.activation) or _supports(problem, platform)


def triton_activation(kind: str) -> Backend:
    """The backend of one operator; kind is "silu", "gelu" or "swiglu_oai"."""

    def bind(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return _bind(problem, "gelu_tanh" if kind == "gelu" and problem.approximate == "tanh" else kind)

    return Backend(name="triton", implementation=f"Triton {kind}_and_mul", supports=_supports, bind=bind)


def _bind(problem: GatedActivationProblem, kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.activation.triton_kernels import gated_activation_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton_support import dependent_launch

    size, dtype = problem.intermediate_size, problem.dtype
    block = min(_BLOCK, power_of_two(size))
    num_blocks, options = -(-size // block), dependent_launch()

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != 2 * size:
            raise TypeError(f"{kind}_and_mul was planned for [..., {2 * size}] {dtype}, got {list(x.shape)} {x.dtype}")
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], size))
        num_rows = x.numel() // (2 * size)
        if num_rows:
            launch(
                gated_activation_kernel, (num_rows, num_blocks), x, out, problem.alpha, problem.limit,
                SIZE=size, ACTIVATION=kind, BLOCK=block, **options,
            )  # fmt: skip
        return out

    return run


def _bind_ungated(problem: ActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.activation.triton_kernels import activation_kernel
    from atom_kernels.triton_support import dependent_launch

    name, dtype, options = str(problem.activation), problem.dtype, dependent_launch()

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != problem.size:
            raise TypeError(f"{name} was planned for [..., {problem.size}] {dtype}, got {list(x.shape)} {x.dtype}")
        x = x.contiguous()
        out, count = torch.empty_like(x), x.numel()
        if count:
            launch(activation_kernel, (-(-count // _BLOCK),), x, out, count, ACTIVATION=name, BLOCK=_BLOCK, **options)
        return out

    return run


ACTIVATION_BACKEND = Backend(
    name="triton", implementation="Triton activation", supports=_supports_ungated, bind=_bind_ungated
)
