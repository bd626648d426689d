"""Batched matrix products on AITER, by which latent attention multiplies its heads in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.head_product.contract import HeadProductProblem

# ``[T, H, K] -> [T, H, N]``.
Product = Callable[[torch.Tensor], torch.Tensor]
_FUNCTION = "batched_gemm_bf16_CK"


def _supports(problem: HeadProductProblem, platform: Platform) -> str | None:
    if problem.rounded_to is not None:
        return f"rounds nothing, and heads are to be rounded to {problem.rounded_to}"
    if problem.dtype != torch.bfloat16:
        return f"multiplies bfloat16, not {problem.dtype}"
    if platform.batch_invariant:
        return "its kernel, and so a row's sums, are chosen by the number of rows"
    return api_of(platform).why_not(_FUNCTION)


def _pack(problem: HeadProductProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    return {"weight": weights["weight"].contiguous()}


def _bind(problem: HeadProductProblem, weights: Any) -> Product:
    multiply, weight_HNK = library().bind(_FUNCTION, "XQ", "WQ"), weights["weight"]
    return of_some_rows(problem, lambda x_THK: multiply(x_THK.transpose(0, 1).contiguous(), weight_HNK).transpose(0, 1))


def of_some_rows(problem: HeadProductProblem, multiply: Product) -> Product:
    """The product, with no call of a kernel where there are no rows."""

    def run(x_THK: torch.Tensor) -> torch.Tensor:
        return multiply(x_THK) if x_THK.shape[0] else x_THK.new_empty((*x_THK.shape[:2], problem.out_features))

    return run


BACKEND = Backend(
    name="aiter",
    implementation=f"AITER {_FUNCTION}",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("by_head", _pack),
)
