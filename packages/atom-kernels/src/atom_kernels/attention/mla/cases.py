"""Random steps of latent attention, for `check`, `bench` and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.attention.cases import make_geometry, moved
from atom_kernels.attention.mla.plan import MlaPlan
from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.protocols import BatchGeometry

_NUM_POSITIONS = 16384


@dataclass(frozen=True)
class MlaStep:
    """Everything that one layer is given in one step."""

    q_THD: torch.Tensor
    kv_TL: torch.Tensor
    kv_b_weight: torch.Tensor
    kv_cache: tuple[torch.Tensor, ...]
    geometry: BatchGeometry
    prologue: MlaPrologue | None

    def to(self, device: str) -> MlaStep:
        """The same step with every tensor on `device`."""
        return moved(self, device)

    def run(self, plan: MlaPlan) -> tuple[torch.Tensor, ...]:
        """The output, and the cache as the step leaves it; the cache of the step itself is left alone."""
        kv_cache = tuple(cache.clone() for cache in self.kv_cache)
        return self.run_in_place(plan, plan.prepare(self.kv_b_weight), kv_cache), *kv_cache

    def run_in_place(self, plan: MlaPlan, weights: Any, kv_cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        metadata = plan.build_metadata(self.geometry)
        return plan.forward(self.q_THD, self.kv_TL, weights, kv_cache, metadata, prologue=self.prologue)


def make_problem(
    num_heads: int, kv_lora_rank: int, nope: int, rope: int, v_head_dim: int, dtype: str = "float32", **overrides: Any
) -> MlaProblem:
    """A problem with the usual scale, a cache of the same dtype and blocks of 16 tokens, unless overridden."""
    values = {"scale": (nope + rope) ** -0.5, "dtype": dtype, "cache_dtype": dtype, "block_size": 16} | overrides
    return MlaProblem(num_heads, kv_lora_rank, nope, rope, v_head_dim, **values)


def make_step(
    problem: MlaProblem,
    requests: Sequence[tuple[int, int]],
    *,
    scattered: bool = False,
    prologue: bool = True,
    interleaved: bool = True,
    seed: int = 0,
) -> MlaStep:
    """A random step; queries and latents are slices of wider projections, as layers give them.

    Args:
        problem: the layer.
        requests: (queries, tokens in all) of each.
        scattered: blocks in random order rather than one run a request.
        prologue: norm latents and rotate.
        interleaved: the kind of rotation.
        seed: of everything.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: str = problem.dtype, size: float = 1.0) -> Any:
        return (torch.randn(*shape, generator=generator) * size).to(getattr(torch, dtype))

    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=scattered, seed=seed)
    q_THD = random(geometry.num_tokens, problem.num_heads, problem.query_dim)
    kv_TL = random(geometry.num_tokens, problem.latent_dim + 5)[:, : problem.latent_dim]
    rank, expanded = problem.kv_lora_rank, problem.qk_nope_head_dim + problem.v_head_dim
    angles = random(_NUM_POSITIONS, problem.qk_rope_head_dim // 2, dtype="float32") * 3
    return MlaStep(
        q_THD=q_THD,
        kv_TL=kv_TL,
        kv_b_weight=random(problem.num_heads * expanded, rank, size=rank**-0.5),
        kv_cache=(random(num_blocks, problem.block_size, problem.latent_dim, dtype=problem.cache_dtype),),
        geometry=geometry,
        prologue=MlaPrologue(
            positions=torch.cat([torch.arange(length - queries, length) for queries, length in requests]),
            cos_sin_cache=torch.cat((angles.cos(), angles.sin()), dim=1),
            interleaved=interleaved,
            norm_weight=random(rank),
        )
        if prologue
        else None,
    )
