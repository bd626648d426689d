"""What adapters add, in torch: products over the matrices of all adapters, of which each token keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankProblem
from atom_kernels.operator import Backend


def _bind(problem: LowRankProblem, weights: Any) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    num_places, num_parts, rank = problem.num_places, len(problem.parts), problem.rank
    a_RI = weights["a"].flatten(0, 1)
    terms = [(slice(*bounds), weights["b"][:, :, slice(*bounds)].flatten(0, 1)) for bounds in problem.bounds]
    places = torch.arange(1, num_places + 1, device=a_RI.device)
    owners_R = places.repeat_interleave(problem.num_rows_of_a)

    def run(y: torch.Tensor, x: torch.Tensor, places_T: torch.Tensor) -> None:
        problem.check_inputs(y, x)
        # Not a product with 0: of an adapter whose numbers overflow it would be no number.
        inner = (x @ a_RI.t()).masked_fill_(places_T[:, None] != owners_R, 0.0)
        of_parts = inner.view(-1, num_places, num_parts, rank).unbind(2)
        for own, (outputs, b_RO) in zip(of_parts, terms, strict=True):
            if y.dtype == own.dtype:
                y[:, outputs].addmm_(own.flatten(1), b_RO)
            else:
                y[:, outputs].add_(own.flatten(1) @ b_RO)

    return run


BACKEND = Backend(name="torch", implementation="torch, products over all adapters", bind=_bind)
