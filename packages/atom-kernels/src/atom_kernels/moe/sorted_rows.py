"""Experts in torch: rows sorted by expert, one product for each expert that any token chose.

Packed matrices become plain numbers one expert at a time, at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.formats import Codes
from atom_kernels.linear.contract import linear
from atom_kernels.moe.contract import ExpertMatrix, ExpertsProblem, activation_of
from atom_kernels.operator import Backend
from atom_kernels.select import select

# rows, expert -> rows
Product = Callable[[torch.Tensor, int], torch.Tensor]


def run_sorted(
    problem: ExpertsProblem, gate_up: Product, down: Product, activate: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """The kernel made of an expert's two products: ``(x, weights, ids, base) -> [T, D]``."""

    def run(
        x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        num_tokens, top_k = ids_TK.shape
        flat_ids = ids_TK.flatten().long()
        order = flat_ids.argsort(stable=True)
        sorted_x = x_TD[order // top_k]
        # Rows whose expert is not here stay zero.
        sorted_out = torch.zeros_like(sorted_x)
        for expert, rows in _segments(flat_ids, problem.num_experts):
            sorted_out[rows] = down(activate(gate_up(sorted_x[rows], expert)), expert)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        pairs = sorted_out[place].view(num_tokens, top_k, x_TD.shape[1])
        out_TD = (pairs.float() * weights_TK.unsqueeze(-1)).sum(dim=1)
        return (out_TD if base_TD is None else out_TD + base_TD).to(x_TD.dtype)

    return run


def _segments(flat_ids: torch.Tensor, num_experts: int) -> Iterator[tuple[int, slice]]:
    """Each expert that was chosen, and where its rows lie among the sorted ones."""
    here = flat_ids[(flat_ids >= 0) & (flat_ids < num_experts)]
    start = int((flat_ids < 0).sum())
    for expert, count in enumerate(torch.bincount(here, minlength=num_experts).tolist()):
        if count:
            yield expert, slice(start, start + count)
            start += count


def fast_activation(problem: ExpertsProblem) -> Callable[[torch.Tensor], torch.Tensor]:
    """The best kernel here for the activation between the products."""
    if problem.activation == Activation.SWIGLU_OAI:  # the operator takes it interleaved
        return activation_of(problem)
    gated = GatedActivationProblem(problem.intermediate_size, problem.dtype, problem.activation)
    return select(GATED_ACTIVATION, gated).prepare()


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    def product(matrix: ExpertMatrix) -> Product:
        weight, bias = weights[matrix.name], weights[f"{matrix.name}_bias"]

        def multiply(rows: torch.Tensor, expert: int) -> torch.Tensor:
            here = None if bias is None else bias[expert]
            if matrix.held.codes is Codes.PLAIN:
                return torch.nn.functional.linear(rows, weight[expert], here)
            return linear(rows, matrix.numbers(weights, expert), here)

        return multiply

    gate_up, down = problem.matrices["gate_up"], problem.matrices["down"]
    return run_sorted(problem, product(gate_up), product(down), fast_activation(problem))


TORCH_BACKEND = Backend(
    name="torch",
    implementation="rows sorted by expert, torch linear for each",
    bind=_bind,
)
