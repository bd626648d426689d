"""Routing, and the experts that were chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from atom_kernels.activation import Activation
from atom_kernels.moe import ExpertsProblem, RoutingProblem
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.select import select
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.case import DTYPE, KernelCase, Sides, bind, operator_case, random, serving_row
from benchmarks.kernels.shapes import ModelShape


def cases(model: str, shape: ModelShape, rows: tuple[int, ...]) -> Iterator[KernelCase]:
    mixture = shape.mixture
    if mixture is None:
        return
    count, top_k = mixture.num_experts, mixture.top_k
    routing = RoutingProblem(count, top_k, DTYPE, renormalize=True)
    problem = ExpertsProblem(
        count, top_k, shape.hidden_size, mixture.intermediate_size, DTYPE, mixture.activation, mixture.bias
    )
    for num_rows in rows:
        yield operator_case(
            *(MOE_ROUTE, routing, num_rows, model, f"top {top_k} of {count}"),
            lambda num_rows=num_rows: (random(num_rows, count),),
        )
        yield _experts_case(model, problem, routing, num_rows)
        if (held := mixture.packed) is not None:
            packed = replace(problem, gate_up_format=held, down_format=held)
            yield _experts_case(model, packed, routing, num_rows)


def _experts_case(model: str, problem: ExpertsProblem, routing: RoutingProblem, num_rows: int) -> KernelCase:
    work = MOE_EXPERTS.work(problem, num_rows)

    def build() -> Sides:
        """One set of weights: tokens of each call reach experts of their own."""
        plan = select(MOE_EXPERTS, problem)
        weights = _random_weights(problem)
        route = select(MOE_ROUTE, routing).prepare()
        kernel, plain = plan.prepare(weights), plain_experts(problem, weights) if problem.is_plain else None
        steps = []
        for _ in range(max(4, num_copies(work.num_bytes))):
            steps.append((random(num_rows, problem.hidden_size), *route(random(num_rows, problem.num_experts))))
        name = serving_row(plan, num_rows).implementation
        return Sides(
            name,
            [bind(kernel, step) for step in steps],
            None if plain is None else [bind(plain, step) for step in steps],
        )

    held = "" if problem.is_plain else f" in {problem.matrices['down'].held.name}"
    label = f"{problem.num_experts} experts{held}, top {problem.top_k}, rows {num_rows}"
    return KernelCase("moe_experts", model, label, work, build)


def _random_weights(problem: ExpertsProblem) -> dict[str, torch.Tensor | None]:
    """Rounded to the formats one expert after the other, since rounding takes several copies."""
    weights: dict[str, torch.Tensor | None] = {}
    for matrix in problem.matrices.values():
        made = [
            matrix.held.quantize(random(matrix.rows, matrix.columns, scale=0.02)) for _ in range(problem.num_experts)
        ]
        weights |= {name: torch.stack([one[part] for one in made]) for part, name in matrix.tensors.items()}
        bias = random(problem.num_experts, matrix.rows, scale=0.02) if problem.bias else None
        weights[f"{matrix.name}_bias"] = bias
    return weights


def plain_experts(
    problem: ExpertsProblem, weights: Mapping[str, torch.Tensor | None]
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """The same in torch's grouped matrix products, without a synchronization."""
    gate_up, down = weights["gate_up"], weights["down"]
    gate_up_bias, down_bias = weights["gate_up_bias"], weights["down_bias"]
    if gate_up is None or down is None:
        raise ValueError("experts need the weights gate_up and down")

    def run(x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        flat = ids_TK.flatten()
        experts, order = flat.sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(problem.num_experts, device=flat.device), right=True)
        ends = ends.to(torch.int32)
        hidden = F.grouped_mm(x_TD[order // problem.top_k], gate_up.transpose(1, 2), offs=ends)
        if gate_up_bias is not None:
            hidden = hidden + gate_up_bias[experts]
        out = F.grouped_mm(_activate(problem, hidden), down.transpose(1, 2), offs=ends)
        if down_bias is not None:
            out = out + down_bias[experts]
        out = out * weights_TK.flatten()[order, None]
        return torch.zeros_like(x_TD, dtype=torch.float32).index_add_(0, order // problem.top_k, out).to(x_TD.dtype)

    return run


def _activate(problem: ExpertsProblem, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = hidden.chunk(2, dim=-1)
    if problem.activation is Activation.SILU:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=problem.limit), up.clamp(-problem.limit, problem.limit)
    return gate * torch.sigmoid(problem.alpha * gate) * (up + 1)
