"""Norms on AITER: Composable Kernel's in the release on PyPI, its own ("opus") in sources from git."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.dtypes import unplanned
from atom_kernels.operator import Backend, Tolerance

if TYPE_CHECKING:
    from atom_kernels.norm.contract import LayerNormProblem, RMSNormProblem
    from atom_kernels.platform import Platform

Kernel = Callable[[torch.Tensor], torch.Tensor]

_HALVES = (torch.bfloat16, torch.float16)


def _why_not_dtype(dtype: torch.dtype, platform: Platform) -> str | None:
    if dtype in _HALVES:
        return None
    if dtype is torch.float32:
        is_pypi = api_of(platform).release == "pypi"
        return "norms of the release on PyPI are written for bfloat16 and float16" if is_pypi else None
    return f"norms are written for bfloat16, float16 and float32, not {dtype}"


def _supports_rms_norm(problem: RMSNormProblem, platform: Platform) -> str | None:
    if problem.weight_offset:
        return f"rmsnorm2d_fwd multiplies with the weight as it is, not with weight + {problem.weight_offset:g}"
    return _why_not_dtype(problem.dtype, platform) or api_of(platform).why_not("rmsnorm2d_fwd")


def _supports_add_rms_norm(problem: RMSNormProblem, platform: Platform) -> str | None:
    if problem.weight_offset not in (0.0, 1.0):
        return f"rmsnorm2d_fwd_with_add adds 1 to the weight or nothing, not {problem.weight_offset:g}"
    gemma = ("gemma_norm",) if problem.weight_offset else ()
    return _why_not_dtype(problem.dtype, platform) or api_of(platform).why_not("rmsnorm2d_fwd_with_add", *gemma)


def _supports_layer_norm(problem: LayerNormProblem, platform: Platform) -> str | None:
    if problem.dtype not in _HALVES:
        return f"layernorm2d_fwd is written for bfloat16 and float16, not {problem.dtype}"
    if problem.weight_offset:
        return f"layernorm2d_fwd multiplies with the weight as it is, not with weight + {problem.weight_offset:g}"
    return api_of(platform).why_not("layernorm2d_fwd")


def rows_of(x: torch.Tensor, size: int, dtype: torch.dtype, name: str) -> torch.Tensor:
    """x as contiguous rows ``[T, size]``: the kernels read rows of two dimensions, with one stride.

    Raises:
        TypeError: x is not what `name` was planned for.
    """
    if x.dtype is not dtype or x.shape[-1] != size:
        raise unplanned(name, x, size, dtype)
    return x.reshape(-1, size).contiguous()


def _bind(name: str, problem: RMSNormProblem | LayerNormProblem, function: str, **weights: torch.Tensor) -> Kernel:
    """A norm of one input, by AITER's function and the weights that it takes beside epsilon."""
    size, dtype = problem.hidden_size, problem.dtype
    norm = library().bind(function, "input", **weights, epsilon=problem.eps)

    def run(x: torch.Tensor) -> torch.Tensor:
        rows = rows_of(x, size, dtype, name)
        return norm(rows).view(x.shape) if rows.shape[0] else torch.empty_like(x)

    return run


def _bind_rms_norm(problem: RMSNormProblem, weights: Any) -> Kernel:
    return _bind("rms_norm", problem, "rmsnorm2d_fwd", weight=weights["weight"].contiguous())


def _bind_layer_norm(problem: LayerNormProblem, weights: Any) -> Kernel:
    weight, bias = weights["weight"].contiguous(), weights.get("bias")
    bias = torch.zeros_like(weight) if bias is None else bias.contiguous()  # AITER's kernel needs a bias
    return _bind("layer_norm", problem, "layernorm2d_fwd", weight=weight, bias=bias)


def _bind_add_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    size, dtype, weight = problem.hidden_size, problem.dtype, weights["weight"].contiguous()
    norm = library().bind(
        "rmsnorm2d_fwd_with_add", "out", "input", "residual_in", "residual_out",
        weight=weight, epsilon=problem.eps, gemma_norm=problem.weight_offset == 1.0,
    )  # fmt: skip

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, others = rows_of(x, size, dtype, "add_rms_norm"), rows_of(residual, size, dtype, "add_rms_norm")
        if rows.shape != others.shape:
            raise TypeError(f"add_rms_norm was given {list(x.shape)} and a residual {list(residual.shape)}")
        out, total = torch.empty_like(rows), torch.empty_like(rows)
        if rows.shape[0]:
            norm(out, rows, others, total)
        return out.view(x.shape), total.view(x.shape)

    return run


def norm_tolerance(problem: Any) -> Tolerance:
    """The tolerance of AITER's own tests (op_tests/test_rmsnorm2d.py); our own for float32."""
    return Tolerance(1e-5, 1e-5) if problem.dtype is torch.float32 else Tolerance(3e-2, 1e-2)


RMS_NORM_BACKEND = Backend(
    name="aiter",
    implementation="AITER rmsnorm2d_fwd",
    supports=_supports_rms_norm,
    bind=_bind_rms_norm,
    tolerance=norm_tolerance,
)
ADD_RMS_NORM_BACKEND = Backend(
    name="aiter",
    implementation="AITER rmsnorm2d_fwd_with_add",
    supports=_supports_add_rms_norm,
    bind=_bind_add_rms_norm,
    tolerance=norm_tolerance,
)
LAYER_NORM_BACKEND = Backend(
    name="aiter",
    implementation="AITER layernorm2d_fwd",
    supports=_supports_layer_norm,
    bind=_bind_layer_norm,
    tolerance=norm_tolerance,
)
