"""Latent attention as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_kernels.attention.cases import bench_requests, describe_requests
from atom_kernels.attention.mla.cases import MlaStep, make_problem, make_step
from atom_kernels.attention.mla.plan import BACKENDS, MlaPlan, select_mla
from atom_kernels.attention.mla.reference import latent_attention
from atom_kernels.attention.plan import UnsupportedAttentionError
from atom_kernels.cases import BenchCase, ParityCase
from atom_kernels.operator import Tolerance, Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.platform import Platform

_TOLERANCES = {"float32": Tolerance(5e-5, 5e-5), "bfloat16": Tolerance(4e-2, 4e-2)}
# One step with everything in it: decodes around the borders of blocks and segments, short queries, chunks of prompts.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 530), (20, 20), (130, 300), (17, 65), (280, 280))
# Heads, kv_lora_rank, nope, rope, v_head_dim.
_EXAMPLES = {
    "DeepSeek-V2-Lite": (16, 512, 128, 64, 128),
    "GLM-4.7-Flash": (20, 512, 192, 64, 256),
}
_PARITY_SHAPES = ((5, 48, 24, 16, 20), (4, 32, 16, 8, 12), (16, 128, 64, 32, 64), (1, 72, 40, 2, 33))
# Its kernels know one size of latents.
_PARITY_SHAPES_OF_AITER = ((16, 512, 128, 64, 128), (20, 512, 192, 64, 256), (128, 512, 128, 64, 128))
# What `explain` shows besides.
_EXPLAINED = {
    **_EXAMPLES,
    "DeepSeek-V3": (128, 512, 128, 64, 128),
    "Kimi-K2, one of 8 ranks": (8, 512, 128, 64, 128),
}


@dataclass(frozen=True)
class LatentAttentionOperator:
    """One layer's latent attention with its prologue and cache write, for the command line of kernel developers."""

    name: str = "latent_attention"
    contract = staticmethod(latent_attention)
    reference = staticmethod(latent_attention)

    def explain(self, platform: Platform) -> list[str]:
        lines = []
        for label, shape in _EXPLAINED.items():
            plan = select_mla(make_problem(*shape, platform.preferred_dtype), platform)
            lines.append(f"{label}: {shape[0]} heads, latents of {shape[1]} + {shape[3]}")
            lines.append(f"  any rows       {plan.backend}   [layout {plan.layout.name}]")
            if plan.kernels:
                lines.append(f"  kernels        {', '.join(plan.kernels)}")
            lines.extend(f"  passed over    {name}: {reason}" for name, reason in plan.reasons)
        return lines

    def parity_cases(self, platform: Platform) -> Iterator[ParityCase]:
        shapes = _PARITY_SHAPES if platform.aiter is None else _PARITY_SHAPES + _PARITY_SHAPES_OF_AITER
        for dtype in _TOLERANCES:
            for index, shape in enumerate(shapes):
                for turn, block_size in enumerate((16, 1, 32)):
                    problem = make_problem(*shape, dtype, block_size=block_size)
                    odd = bool((index + turn) % 2)
                    step = make_step(problem, MIXED, scattered=odd, prologue=turn != 1, interleaved=not odd, seed=index)
                    step = step.to(platform.device)
                    reference = select_mla(problem, platform, only_backend="reference")
                    for plan in usable_plans(problem, platform):
                        if plan.backend != "reference":
                            yield ParityCase(
                                backend=plan.backend,
                                label=_describe(problem),
                                run=lambda plan=plan, step=step: step.run(plan),
                                expected=lambda plan=reference, step=step: step.run(plan),
                                tolerance=_TOLERANCES[problem.dtype],
                            )

    def bench_cases(self, platform: Platform) -> Iterator[BenchCase]:
        for label, shape in _EXAMPLES.items():
            problem = make_problem(*shape, platform.preferred_dtype)
            plans = usable_plans(problem, platform)
            baseline = next(plan for plan in plans if plan.backend == "torch")
            for requests in bench_requests(platform.device):
                step = make_step(problem, requests).to(platform.device)
                for plan in plans:
                    if plan.backend != "reference":
                        yield BenchCase(
                            backend=plan.backend,
                            label=f"{label} {describe_requests(requests)}",
                            run=_runner(plan, step),
                            baseline=_runner(baseline, step),
                            work=_work(problem, requests),
                        )


def usable_plans(problem: MlaProblem, platform: Platform | None = None) -> list[MlaPlan]:
    """A plan for each backend that can run here."""
    plans = []
    for module in BACKENDS:
        try:
            plans.append(select_mla(problem, platform, only_backend=module.NAME))
        except UnsupportedAttentionError:
            continue
    return plans


def _runner(plan: MlaPlan, step: MlaStep) -> Callable[[], Any]:
    weights = plan.prepare(step.kv_b_weight)
    return lambda: step.run_in_place(plan, weights, step.kv_cache)


def _describe(problem: MlaProblem) -> str:
    heads = (
        f"{problem.num_heads} heads of {problem.qk_nope_head_dim} + {problem.qk_rope_head_dim}, {problem.v_head_dim}"
    )
    return f"{heads}, latents of {problem.kv_lora_rank}, {problem.dtype}, blocks of {problem.block_size}"


def _work(problem: MlaProblem, requests: list[tuple[int, int]]) -> Work:
    """Each latent and weight read once, queries read and outputs written; the cheaper of both ways to compute it."""
    keys = sum(length for _, length in requests)
    rows = sum(queries for queries, _ in requests)
    pairs = sum(sum(range(length - queries + 1, length + 1)) for queries, length in requests)
    per_head = problem.qk_nope_head_dim + problem.v_head_dim
    products = problem.kv_lora_rank * per_head
    absorbed = rows * products + pairs * (problem.latent_dim + problem.kv_lora_rank)
    expanded = keys * products + pairs * (problem.query_dim + problem.v_head_dim)
    per_row = problem.num_heads * (problem.query_dim + problem.v_head_dim)
    elements = keys * problem.latent_dim + problem.num_heads * products + rows * per_row
    return Work(elements * DTYPE_BYTES[problem.dtype], 2 * problem.num_heads * min(absorbed, expanded))


OPS = (LatentAttentionOperator(),)
