"""Routing and grouped experts as operators."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.aiter.moe import experts as aiter_experts
from atom_kernels.aiter.moe import grouped_int4, quantized_experts
from atom_kernels.aiter.moe import routing as aiter_routing
from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, WeightFormat, num_bytes, weight_specs
from atom_kernels.moe import grouped_backend, native, native_quantized
from atom_kernels.moe.contract import ExpertsProblem, RoutingProblem, experts, route, routing_tensors
from atom_kernels.moe.sorted_rows import TORCH_BACKEND
from atom_kernels.moe.tolerance import experts_tolerance
from atom_kernels.moe.triton import experts_backend, route_backend
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec, Work


def _route_weights(problem: RoutingProblem) -> dict[str, WeightSpec]:
    if not problem.correction_bias:
        return {}
    return {"correction_bias": WeightSpec((problem.num_experts,), torch.float32)}


def _route_inputs(problem: RoutingProblem, num_rows: int, generator: torch.Generator) -> Any:
    logits = torch.randn(num_rows, problem.num_experts, generator=generator) * 2
    bias = torch.randn(problem.num_experts, generator=generator) * 0.1
    return ({"correction_bias": bias} if problem.correction_bias else {}), (logits.to(problem.dtype),)


def _route_problems() -> tuple[RoutingProblem, ...]:
    rules: tuple[dict[str, Any], ...] = (
        {"num_experts": 8, "top_k": 2, "renormalize": True},
        {"num_experts": 1, "top_k": 1},
        {"num_experts": 60, "top_k": 4, "scaling_factor": 16.0},
        {"num_experts": 160, "top_k": 6, "num_groups": 8, "top_groups": 3, "scaling_factor": 16.0},
        {"num_experts": 40, "top_k": 6, "num_groups": 4, "top_groups": 2, "group_score": "top2"},
        {"num_experts": 37, "top_k": 5, "scoring": "sigmoid", "renormalize": True, "correction_bias": True},
        {"num_experts": 12, "top_k": 3, "correction_bias": True},
        {
            "num_experts": 256,
            "top_k": 8,
            "num_groups": 8,
            "top_groups": 4,
            "group_score": "top2",
            "scoring": "sigmoid",
            "renormalize": True,
            "correction_bias": True,
            "scaling_factor": 2.5,
        },
    )
    return tuple(RoutingProblem(dtype=dtype, **rule) for rule in rules for dtype in FLOATS)


def by_expert(routed: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and ids of the chosen, the lower expert first."""
    weights_TK, ids_TK = routed
    ids_TK, order = ids_TK.sort(dim=-1)
    return weights_TK.gather(1, order), ids_TK


def _route_work(problem: RoutingProblem, num_rows: int) -> Work:
    return Work(num_rows * (problem.num_experts * problem.dtype.itemsize + problem.top_k * 8))


def _bind_route(problem: RoutingProblem, weights: Any) -> Any:
    bias = weights.get("correction_bias")
    return lambda logits_TE: route(problem, logits_TE, bias)


MOE_ROUTE = Op(
    name="moe_route",
    contract=route,
    reference=lambda problem, weights, logits_TE: route(problem, logits_TE, weights.get("correction_bias")),
    schema="(Tensor logits) -> (Tensor, Tensor)",
    fake=lambda problem, logits_TE: routing_tensors(problem, logits_TE)[1:],
    backends=(
        aiter_routing.SOFTMAX_BACKEND,
        aiter_routing.GROUPED_BACKEND,
        aiter_routing.BIASED_BACKEND,
        route_backend.ROUTE_BACKEND,
        native.ROUTE_BACKEND,
        Backend(
            name="torch",
            implementation="torch scores and stable sort",
            bind=_bind_route,
        ),
    ),
    weights=_route_weights,
    make_inputs=_route_inputs,
    parity_problems=_route_problems,
    examples=lambda: (
        RoutingProblem(32, 4, torch.bfloat16, renormalize=True),
        RoutingProblem(
            *(256, 8, torch.float32, "sigmoid", True, True),
            num_groups=8,
            top_groups=4,
            group_score="top2",
            scaling_factor=2.5,
        ),
    ),
    tolerance=lambda problem: Tolerance(1e-6, 1e-5),
    work=_route_work,
    comparable=by_expert,
)


def _expert_weights(problem: ExpertsProblem) -> dict[str, WeightSpec]:
    experts_, hidden, size = problem.num_experts, problem.hidden_size, problem.intermediate_size
    absent = not problem.bias
    specs = {}
    for matrix in problem.matrices.values():
        parts = weight_specs(matrix.held, matrix.rows, matrix.columns, (experts_,))
        specs |= {name: parts[part] for part, name in matrix.tensors.items()}
    return {
        **specs,
        "gate_up_bias": WeightSpec((experts_, 2 * size), problem.dtype, optional=absent),
        "down_bias": WeightSpec((experts_, hidden), problem.dtype, optional=absent),
    }


def _expert_inputs(problem: ExpertsProblem, num_rows: int, generator: torch.Generator) -> Any:
    """Uneven experts, as in real models: the first are chosen most, some never. Odd numbers of rows have a base.

    Where some are absent, every other one of those that are chosen is here.
    """

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(problem.dtype)

    weights: dict[str, torch.Tensor | None] = {}
    for matrix in problem.matrices.values():
        shape = (problem.num_experts, matrix.rows, matrix.columns)
        parts = matrix.held.quantize(random(*shape, scale=matrix.columns**-0.5))
        weights |= {name: parts[part] for part, name in matrix.tensors.items()}
        bias = f"{matrix.name}_bias"
        weights[bias] = random(problem.num_experts, matrix.rows) if problem.bias else None
    slope = torch.linspace(2.0, -2.0, problem.num_routed)
    logits = torch.randn(num_rows, problem.num_routed, generator=generator) + slope
    routing = RoutingProblem(problem.num_routed, problem.top_k, renormalize=True)
    base = random(num_rows, problem.hidden_size) if num_rows % 2 else None
    weights_TK, ids_TK = route(routing, logits)
    if problem.num_absent:
        here = torch.where(ids_TK % 2 == 0, ids_TK // 2, problem.num_experts)
        ids_TK = here.clamp(max=problem.num_experts).to(torch.int32)
    return weights, (random(num_rows, problem.hidden_size), weights_TK, ids_TK, base)


def _expert_problems() -> tuple[ExpertsProblem, ...]:
    rules: tuple[tuple[tuple[int, int, int, int], dict[str, Any]], ...] = (
        ((1, 1, 1, 1), {}),
        ((4, 2, 64, 32), {}),
        ((8, 3, 33, 65), {"bias": True}),
        ((5, 4, 40, 23), {"bias": True, "activation": "swiglu_oai"}),
        ((3, 2, 2100, 48), {"activation": "swiglu_oai"}),
        ((9, 2, 128, 176), {}),
        ((3, 4, 128, 176), {"num_absent": 4}),
        ((4, 3, 64, 32), {"bias": True, "activation": "swiglu_oai", "num_absent": 5}),
    )
    plain = tuple(ExpertsProblem(*shape, dtype, **rule) for shape, rule in rules for dtype in FLOATS)
    return (*plain, *_quantized_problems())


def _quantized_problems() -> tuple[ExpertsProblem, ...]:
    """Every format for both products, sizes that no kernel of packed codes takes, and unlike formats."""
    formats: tuple[WeightFormat, ...] = (
        Float8(),
        Float8(128, 128),
        Float8(16, 32),
        Integers(8),
        Integers(8, 32),
        Integers(8, 32, Offset.MINIMUM),
        *(Integers(4, 32, offset, torch.float16) for offset in Offset),
        Mxfp4(),
        Nvfp4(),
    )
    odd: dict[str, Any] = {"bias": True, "activation": "swiglu_oai"}
    pairs = [(one, one) for one in formats] + [(Mxfp4(), Float8(128, 128)), (Integers(8), Integers(4, 32))]
    alike = tuple(
        ExpertsProblem(*(5, 2, 96, 160), torch.float32, **odd, gate_up_format=gate_up, down_format=down)
        for gate_up, down in pairs
    )
    return (
        *alike,
        ExpertsProblem(4, 2, 64, 32, torch.bfloat16, gate_up_format=Mxfp4(), down_format=Mxfp4()),
        ExpertsProblem(2, 3, 64, 32, torch.float32, gate_up_format=Mxfp4(), down_format=Mxfp4(), num_absent=3),
        ExpertsProblem(3, 1, 40, 24, torch.float32, gate_up_format=Integers(8), down_format=Integers(8)),
        ExpertsProblem(3, 2, 64, 32, torch.float32, gate_up_format=Integers(8)),
        *(
            ExpertsProblem(
                *(4, 2, 256, size), torch.bfloat16, gate_up_format=weights, down_format=weights, input_format=inputs
            )
            for weights, inputs, size in (
                (Float8(), Float8(), 96),
                (Float8(128, 128), Float8(1, 128), 128),
                (Integers(4), Float8(), 96),
                (Mxfp4(), Mxfp4(), 192),
                (Integers(4, 32, scale_dtype=torch.bfloat16), None, 96),
            )
        ),
    )


def _expert_work(problem: ExpertsProblem, num_rows: int) -> Work:
    """The weights of as many experts as the rows can reach on average, each read once."""
    chosen = problem.top_k / problem.num_routed
    reached = problem.num_experts * (1 - (1 - chosen) ** num_rows)
    matrices = problem.matrices.values()
    weights = sum(num_bytes(matrix.held, matrix.rows, matrix.columns) for matrix in matrices)
    moved = reached * weights + 2 * num_rows * problem.hidden_size * problem.dtype.itemsize
    products = 3 * problem.hidden_size * problem.intermediate_size
    return Work(int(moved), 2 * int(num_rows * chosen * problem.num_experts) * products)


MOE_EXPERTS = Op(
    name="moe_experts",
    contract=experts,
    reference=experts,
    schema="(Tensor x, Tensor weights, Tensor ids, Tensor? base=None) -> Tensor",
    fake=lambda problem, x_TD, *rest: torch.empty_like(x_TD),
    backends=(
        aiter_experts.EXPERTS_BACKEND,
        quantized_experts.QUANTIZED_BACKEND,
        grouped_int4.GROUPED_INT4_BACKEND,
        experts_backend.EXPERTS_BACKEND,
        grouped_backend.GROUPED_BACKEND,
        experts_backend.PACKED_EXPERTS_BACKEND,
        native.EXPERTS_BACKEND,
        native_quantized.QUANTIZED_BACKEND,
        TORCH_BACKEND,
    ),
    weights=_expert_weights,
    make_inputs=_expert_inputs,
    parity_problems=_expert_problems,
    examples=lambda: (
        ExpertsProblem(32, 4, 1024, 512, torch.bfloat16),
        ExpertsProblem(8, 2, 512, 1024, torch.float32),
        ExpertsProblem(8, 2, 512, 1024, torch.float32, gate_up_format=Mxfp4(), down_format=Mxfp4()),
        *(
            ExpertsProblem(
                *(8, 2, 512, 1024), torch.bfloat16, gate_up_format=weights, down_format=weights, input_format=inputs
            )
            for weights, inputs in (
                (Float8(128, 128), Float8(1, 128)),
                (Integers(4), Float8()),
                (Integers(4, 32, scale_dtype=torch.bfloat16), None),
                (Mxfp4(), Mxfp4()),
            )
        ),
    ),
    tolerance=experts_tolerance,
    work=_expert_work,
)

OPS = (MOE_ROUTE, MOE_EXPERTS)
