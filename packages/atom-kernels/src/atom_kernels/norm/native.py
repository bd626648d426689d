"""Norms in C: a pass for each sum over a row, one to write; float32 inside, rows split over threads."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from typing import Any

import torch

from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.norm.contract import LayerNormProblem, RMSNormProblem
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SIGNATURES = (
    {f"rms_norm_{suffix}": "pppllff" for suffix in _SUFFIXES.values()}
    | {f"add_rms_norm_{suffix}": "pppppllff" for suffix in _SUFFIXES.values()}
    | {f"layer_norm_{suffix}": "ppppllf" for suffix in _SUFFIXES.values()}
)


def _supports(problem: RMSNormProblem | LayerNormProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("norm")


def _supports_layer_norm(problem: LayerNormProblem, platform: Any) -> str | None:
    if problem.dtype is torch.bfloat16 and not problem.weight_offset:
        return "torch's own is quicker in bfloat16 where nothing is added to the weight"
    return _supports(problem, platform)


def _bind(
    name: str, problem: RMSNormProblem | LayerNormProblem, given: tuple[Any, ...], numbers: tuple[c_float, ...]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A norm of one input, by what a row reads beside itself (tensors, or None) and its numbers."""
    function = getattr(load_native("norm", _SIGNATURES), f"{name}_{_SUFFIXES[problem.dtype]}")
    size, dtype, empty_like = problem.hidden_size, problem.dtype, torch.empty_like
    # Arguments that never change are converted for C once.
    pointers = tuple(c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in given)
    c_size = c_int64(size)

    def run(x: torch.Tensor, _keep_alive: tuple[Any, ...] = given) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned(name, x, size, dtype)
        if not x.is_contiguous():
            x = x.contiguous()
        out = empty_like(x)
        function(x.data_ptr(), *pointers, out.data_ptr(), x.numel() // size, c_size, *numbers)
        return out

    return run


def _bind_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = weights["weight"].contiguous()
    return _bind("rms_norm", problem, (weight,), (c_float(problem.eps), c_float(problem.weight_offset)))


def _bind_layer_norm(problem: LayerNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    bias = weights.get("bias")
    # In float32 with the offset added, once: what a row reads beside itself.
    weight = weights["weight"].float().contiguous() + problem.weight_offset
    bias = None if bias is None else bias.float().contiguous()
    return _bind("layer_norm", problem, (weight, bias), (c_float(problem.eps),))


def _bind_add_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    function = getattr(load_native("norm", _SIGNATURES), f"add_rms_norm_{_SUFFIXES[problem.dtype]}")
    weight = weights["weight"].contiguous()
    size, dtype, empty_like = problem.hidden_size, problem.dtype, torch.empty_like
    # Arguments that never change are converted for C once.
    weight_pointer, c_size = c_void_p(weight.data_ptr()), c_int64(size)
    eps, offset = c_float(problem.eps), c_float(problem.weight_offset)

    def run(
        x: torch.Tensor, residual: torch.Tensor, _keep_alive: torch.Tensor = weight
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("add_rms_norm", x, size, dtype)
        if residual.dtype is not dtype or residual.shape != x.shape:
            raise unplanned("add_rms_norm", residual, size, dtype)
        if not x.is_contiguous():
            x = x.contiguous()
        if not residual.is_contiguous():
            residual = residual.contiguous()
        normed, total = empty_like(x), empty_like(x)
        function(
            x.data_ptr(), residual.data_ptr(), weight_pointer, normed.data_ptr(), total.data_ptr(),
            x.numel() // size, c_size, eps, offset,
        )  # fmt: skip
        return normed, total

    return run


RMS_NORM_BACKEND = Backend(name="native", implementation="C rms_norm", supports=_supports, bind=_bind_rms_norm)
ADD_RMS_NORM_BACKEND = Backend(
    name="native", implementation="C add_rms_norm", supports=_supports, bind=_bind_add_rms_norm
)
LAYER_NORM_BACKEND = Backend(
    name="native", implementation="C layer_norm", supports=_supports_layer_norm, bind=_bind_layer_norm
)
