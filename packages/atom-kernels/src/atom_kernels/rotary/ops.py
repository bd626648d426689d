"""Rotation as an operator, for callers other than attention backends, which rotate by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.aiter import rotary as aiter_rotary
from atom_kernels.operator import Backend, Op, Work
from atom_kernels.rotary.contract import RotaryProblem, apply_rotary
from atom_kernels.rotary.tables import RopeConfig, rope_cos_sin
from atom_kernels.tolerances import elementwise_tolerance


def _bind(problem: RotaryProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def run(
        q_THD: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_cache_PR: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return apply_rotary(
            q_THD,
            k_TKD,
            positions_T,
            cos_sin_cache_PR,
            interleaved=problem.interleaved,
            mrope_section=problem.mrope_section,
            mrope_interleaved=problem.mrope_interleaved,
        )

    return run


def _make_inputs(problem: RotaryProblem, num_rows: int, generator: torch.Generator) -> Any:
    def heads(count: int) -> torch.Tensor:
        return torch.randn(num_rows, count, problem.head_dim, generator=generator).to(problem.dtype)

    cache = rope_cos_sin(RopeConfig(head_dim=problem.rotary_dim, max_position=100))
    shape = (3, num_rows) if problem.mrope_section else (num_rows,)
    positions = torch.randint(0, 100, shape, generator=generator)
    return {}, (heads(problem.num_heads), heads(problem.num_kv_heads), positions, cache)


def _problems() -> tuple[RotaryProblem, ...]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    plain = tuple(
        RotaryProblem(3, 1, head_dim, rotary_dim, dtype, interleaved)
        for head_dim, rotary_dim in ((64, 64), (20, 20), (80, 32))
        for dtype in dtypes
        for interleaved in (False, True)
    )
    threefold = RotaryProblem(4, 2, 24, 16, torch.float32, mrope_section=(3, 3, 2))
    return (*plain, threefold, replace(threefold, dtype=torch.bfloat16, mrope_interleaved=True))


def _work(problem: RotaryProblem, num_rows: int) -> Work:
    heads = problem.num_heads + problem.num_kv_heads
    return Work(num_rows * (2 * heads * problem.head_dim * problem.dtype.itemsize + 4 * problem.rotary_dim))


OP = Op(
    name="apply_rotary",
    contract=apply_rotary,
    reference=lambda problem, weights, *inputs: _bind(problem, weights)(*inputs),
    schema="(Tensor q, Tensor k, Tensor positions, Tensor cos_sin_cache) -> (Tensor, Tensor)",
    fake=lambda problem, q, k, positions, cos_sin_cache: (torch.empty_like(q), torch.empty_like(k)),
    backends=(
        aiter_rotary.BACKEND,
        Backend(name="torch", implementation="torch", bind=_bind),
    ),
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (RotaryProblem(9, 3, 64, 64, torch.bfloat16),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)

OPS = (OP,)
