"""Random problems and steps of sparse latent attention: those of latent attention with a random choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.attention.mla import cases as dense
from atom_kernels.attention.sparse.problem import SparseMlaProblem
from atom_kernels.mixers.cases import MixerStep


def make_problem(*shape: int, dtype: str = "float32", **overrides: Any) -> SparseMlaProblem:
    """Heads, kv_lora_rank, nope, rope, v_head_dim and top_k; the rest is as in latent attention's cases."""
    *sizes, top_k = shape
    heads, rank, nope, rope, value = sizes
    return SparseMlaProblem.of(dense.make_problem(heads, rank, nope, rope, value, dtype, **overrides), top_k)


def make_step(
    problem: SparseMlaProblem, requests: Sequence[tuple[int, int]], *, seed: int = 0, **rest: Any
) -> MixerStep:
    """A random step; `rest` is as in latent attention's cases."""
    step = dense.make_step(problem, requests, seed=seed, **rest)
    return replace(step, inputs=(*step.inputs, choose_at_random(requests, problem.top_k, seed=seed)))


def choose_at_random(requests: Sequence[tuple[int, int]], top_k: int, *, seed: int) -> torch.Tensor:
    """int32 ``[T, top_k]``: positions up to each token's own, as the contract wants them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for queries, length in requests:
        for position in range(length - queries, length):
            best = torch.randperm(position + 1, generator=generator)[:top_k].sort().values
            rows.append(torch.nn.functional.pad(best, (0, top_k - len(best)), value=-1))
    return torch.stack(rows).int()
