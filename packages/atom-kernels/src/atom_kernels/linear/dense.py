"""Linears over plain weights in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.linear.batch_invariant import why_not_cublas
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.operator import Backend


def _bind(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias, function = weights["weight"], weights["bias"], torch.nn.functional.linear
    if problem.result_dtype == problem.dtype:
        return lambda x_TK: function(x_TK, weight, bias)
    if bias is None and _keeps_sums(weight):
        return lambda x_TK: torch.mm(x_TK, weight.t(), out_dtype=problem.result_dtype)
    return lambda x_TK: function(x_TK, weight, bias).to(problem.result_dtype)


def _keeps_sums(weight: torch.Tensor) -> bool:
    """Whether torch can give a product's sums in float32; torch 2.8 for ROCm raises, and then they are rounded."""
    if not weight.is_cuda:
        return False
    try:
        torch.mm(weight[:1], weight[:1].t(), out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


DENSE_BACKEND = Backend(name="torch", implementation="torch linear", supports=why_not_cublas, bind=_bind)
