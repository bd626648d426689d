"""A linear and its neighbors as operators one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.linear.cases import tolerance
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.norm.contract import rms_norm
from atom_kernels.operator import Backend, Tolerance
from atom_kernels.select import select


def between_operators(backend: Backend) -> Backend:
    """The backend of a product, for linears with their neighbors too: other operators run what its kernel leaves.

    A kernel whose rows may come rounded, as `Backend.row_rounding` says, has ``of_rounded(codes, scales)``.
    """

    def bind(problem: LinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
        kernel: Any = backend.bind(problem.product, weights)
        if problem.is_alone:
            return kernel
        return composed(problem, kernel, rounded_linear=kernel.of_rounded if backend.row_rounding else None)

    def promised(problem: LinearProblem) -> Tolerance:
        """What a vendor promises is for the product of rows of order one."""
        return (backend.tolerance if backend.tolerance and problem.is_alone else tolerance)(problem)

    return replace(backend, bind=bind, tolerance=promised)


def composed(
    problem: LinearProblem,
    linear: Callable[[torch.Tensor], torch.Tensor],
    *,
    norm: Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor] | None = None,
    normed_linear: Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor] | None = None,
    activation_backend: str | None = None,
    rounded_linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Callable[..., torch.Tensor]:
    """The kernel of a linear with its neighbors.

    Args:
        linear: computes `LinearProblem.product` with its weights.
        norm: the RMS norm of x with a weight, an epsilon and an offset of the weight; None for plain torch: layers norm
            by a plan of their own before a kernel that serves any number of rows.
        normed_linear: both of these, where that is a kernel less.
        activation_backend: the only backend that may serve the activation, None for the best one here.
        rounded_linear: the linear of rows that another kernel has rounded, of their codes and scales.
    """
    norm = norm or (lambda x, weight, eps, offset: rms_norm(x, weight, eps, weight_offset=offset))
    activate = None
    if problem.gated:
        gated = GatedActivationProblem(problem.out_features, problem.dtype, Activation.SILU)
        activate = select(GATED_ACTIVATION, gated, only_backend=activation_backend).prepare()

    def run(
        x: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
        norm_offset: float = 0.0,
        residual: torch.Tensor | None = None,
        row_scale: torch.Tensor | None = None,
        low_rank: LowRankTerm | None = None,
    ) -> torch.Tensor:
        normed = x
        if norm_weight is not None and (normed_linear is None or low_rank is not None):
            normed = norm(x, norm_weight, eps, norm_offset)
        if row_scale is not None:
            if rounded_linear is None:
                raise TypeError("linear was given rows that are rounded, and rounds its rows by itself")
            if low_rank is not None:
                raise TypeError("linear was given rows that are rounded, and adapters multiply them as they were")
            out = rounded_linear(x, row_scale)
        elif norm_weight is not None and normed_linear is not None:
            out = normed_linear(x, norm_weight, eps, norm_offset)
        else:
            out = linear(normed)
        if low_rank is not None:
            low_rank.add(out, normed)
        if activate is not None:
            out = activate(out)
        return out if residual is None else out + residual

    return run
