"""AITER's pure torch quantizers: the references that its own tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def largest(dtype: torch.dtype) -> float:
    """The largest value of a dtype."""
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def pertoken_quant(
    x: Tensor,
    scale: Tensor | None = None,
    x_scale: Tensor | None = None,
    scale_dtype: torch.dtype = torch.float32,
    quant_dtype: torch.dtype = torch.int8,
    dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``(x / scale, scale [..., 1])``; rows of zeros get the scale 1. `x_scale` smooths first."""
    smoothed = x.float() if x_scale is None else x.float() * x_scale
    if scale is None:
        scale = smoothed.abs().amax(-1, keepdim=True) / (largest(quant_dtype) if dtypeMax is None else dtypeMax)
        scale = torch.where(scale == 0, 1.0, scale)
    return (smoothed / scale).to(quant_dtype), scale.to(scale_dtype)


def per_tensor_quant(
    x: Tensor,
    scale: Tensor | None = None,
    scale_dtype: torch.dtype = torch.float32,
    quant_dtype: torch.dtype = torch.int8,
    dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``(x / scale, scale [1])`` with one scale for all."""
    if scale is None:
        scale = x.float().abs().max() / (largest(quant_dtype) if dtypeMax is None else dtypeMax)
    return (x.float() / scale).to(quant_dtype), scale.view(1).to(scale_dtype)


def per_1x128_quant(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """One scale for each 128 columns: ``(x / scale [M, N], scale [M, N/128])``."""
    assert x.shape[-1] % 128 == 0, f"block size 128 not match {x.shape[-1]}"
    rows, columns = x.shape
    values, scales = pertoken_quant(x.view(-1, 128), scale=scale, quant_dtype=quant_dtype)
    return values.view(rows, columns), scales.view(rows, columns // 128)


def torch_quant(name: str) -> Callable[..., Any]:
    """The quantizer of a `QuantType` by its name."""

    def unsupported(*_args: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"unsupported quant type {name}")

    known = {"per_Tensor": per_tensor_quant, "per_Token": pertoken_quant, "per_1x128": per_1x128_quant}
    return (lambda *args, **_options: (args[0], None)) if name == "No" else known.get(name, unsupported)
