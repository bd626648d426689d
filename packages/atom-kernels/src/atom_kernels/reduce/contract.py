"""What sums over ranks compute, in plain torch over a group's own `all_gather`.

T: tokens, D: hidden size. Every rank calls with tensors of one shape, and all get the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.norm.contract import RMSNormProblem, add_rms_norm
from atom_kernels.protocols import Collectives


@dataclass(frozen=True)
class AllReduceProblem:
    """Rows of `hidden_size` elements, of which each of `ranks` has a part."""

    hidden_size: int
    dtype: torch.dtype
    ranks: Collectives


@dataclass(frozen=True)
class AllReduceNormProblem:
    """A sum over `ranks` that is added to a residual, which is normed."""

    norm: RMSNormProblem
    ranks: Collectives

    @property
    def hidden_size(self) -> int:
        return self.norm.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype


def all_reduce(x_TD: torch.Tensor, ranks: Collectives) -> None:
    """Overwrites x by the sum of all ranks' x: in float32, in the order of the ranks, rounded once to x's dtype.

    Kernels of ours keep that order, so all ranks have the same bits whatever comes first. The libraries of vendors
    have orders of their own.
    """
    total = torch.zeros_like(x_TD, dtype=torch.float32)
    for part in ranks.all_gather(x_TD[None], 0):
        total += part.float()
    x_TD.copy_(total)


def all_reduce_add_rms_norm(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    *,
    ranks: Collectives,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``add_rms_norm`` of the sum of all ranks' x, as `all_reduce` rounds it; returns ``(normed, new_residual)``.

    The residual is the same on all ranks and stays as it is; x may be overwritten.
    """
    all_reduce(x_TD, ranks)
    return add_rms_norm(x_TD, residual_TD, weight_D, eps, weight_offset=weight_offset)
