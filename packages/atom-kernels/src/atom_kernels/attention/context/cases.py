"""Random problems and steps of latent attention over a part of each context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.attention.context.problem import PartialMlaProblem
from atom_kernels.attention.mla import cases as whole
from atom_kernels.mixers.cases import MixerStep


def make_problem(*shape: int, dtype: str = "float32", **overrides: Any) -> PartialMlaProblem:
    """Heads of a rank, kv_lora_rank, nope, rope, v_head_dim, ranks, rank; the rest as latent attention's cases."""
    *sizes, num_ranks, rank = shape
    heads, latent, nope, rope, value = sizes
    return PartialMlaProblem.of(
        whole.make_problem(heads, latent, nope, rope, value, dtype, **overrides), num_ranks, rank
    )


def make_step(
    problem: PartialMlaProblem, requests: Sequence[tuple[int, int]], *, seed: int = 0, **rest: Any
) -> MixerStep:
    """A random step; `rest` is as in latent attention's cases."""
    step = whole.make_step(problem, requests, seed=seed, **rest)
    q_THD, kv_TL = step.inputs
    generator, absorbed = torch.Generator().manual_seed(seed + 1), problem.absorbed
    q_THL = torch.randn(len(q_THD), absorbed.num_heads, absorbed.latent_dim, generator=generator).to(q_THD.dtype)
    return replace(step, inputs=(q_THL, kv_TL))
