"""Norms through Triton, as backends of their operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.norm.contract import LayerNormProblem, RMSNormProblem
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# A row lies in the registers of one program.
_MAX_SIZE = 32768


def _supports(problem: RMSNormProblem | LayerNormProblem, platform: Any) -> str | None:
    if problem.hidden_size > _MAX_SIZE:
        return f"holds a row of up to {_MAX_SIZE} elements in registers, not {problem.hidden_size}"
    return why_not_dtype(problem.dtype, FLOATS)


@functools.cache
def _launch_options(size: int) -> dict[str, Any]:
    """Elements and warps of one program, and how it is launched."""
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    block = power_of_two(size)
    return {"SIZE": size, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)} | dependent_launch()


def _bind_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = weights["weight"].contiguous()
    return _checked("rms_norm", problem, lambda x: rms_norm_by_triton(x, weight, problem.eps, problem.weight_offset))


def _bind_layer_norm(problem: LayerNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.norm.triton_kernels import layer_norm_kernel

    weight, bias = weights["weight"].contiguous(), weights.get("bias")
    bias = None if bias is None else bias.contiguous()
    numbers = (problem.eps, problem.weight_offset)
    return _checked("layer_norm", problem, lambda x: _norm(layer_norm_kernel, x, (weight, bias), numbers))


def _checked(
    name: str, problem: RMSNormProblem | LayerNormProblem, norm: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not problem.dtype or x.shape[-1] != problem.hidden_size:
            raise unplanned(name, x, problem.hidden_size, problem.dtype)
        return norm(x)

    return run


def rms_norm_by_triton(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """`rms_norm` of x, contiguous or not, over its last dimension."""
    from atom_kernels.norm.triton_kernels import rms_norm_kernel

    return _norm(rms_norm_kernel, x, (weight,), (eps, offset))


def _norm(
    kernel: Any, x: torch.Tensor, given: tuple[torch.Tensor | None, ...], numbers: tuple[float, ...]
) -> torch.Tensor:
    """A norm of one input, by what a row reads beside itself and its numbers."""
    x, size = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    num_rows = x.numel() // size
    if num_rows:
        launch(kernel, (num_rows,), x, *given, out, *numbers, **_launch_options(size))
    return out


def _bind_add_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from atom_kernels.norm.triton_kernels import add_rms_norm_kernel

    weight = weights["weight"].contiguous()
    size, dtype, eps, offset = problem.hidden_size, problem.dtype, problem.eps, problem.weight_offset

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("add_rms_norm", x, size, dtype)
        if residual.dtype is not dtype or residual.shape != x.shape:
            raise unplanned("add_rms_norm", residual, size, dtype)
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        num_rows = x.numel() // size
        if num_rows:
            launch(
                add_rms_norm_kernel, (num_rows,), x, residual, weight, out, total, eps, offset, **_launch_options(size)
            )
        return out, total

    return run


RMS_NORM_BACKEND = Backend(name="triton", implementation="Triton rms_norm", supports=_supports, bind=_bind_rms_norm)
ADD_RMS_NORM_BACKEND = Backend(
    name="triton", implementation="Triton add_rms_norm", supports=_supports, bind=_bind_add_rms_norm
)
LAYER_NORM_BACKEND = Backend(
    name="triton", implementation="Triton layer_norm", supports=_supports, bind=_bind_layer_norm
)
