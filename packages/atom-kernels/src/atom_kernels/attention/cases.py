"""Random steps of attention, for `check`, `bench` and tests: any requests, over adjacent or scattered blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from atom_kernels.aiter.attention.layouts import from_nhd, restore_nhd
from atom_kernels.attention.plan import AttentionPlan
from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.protocols import BatchGeometry

_MIN_POSITIONS = 1024


def bench_requests(device: str) -> list[list[tuple[int, int]]]:
    """Steps to measure, as requests of (queries, tokens in all): decodes and a prompt, as many as fill the device."""
    if device == "cpu":
        return [[(1, 512)], [(1, 512)] * 16, [(512, 512)]]
    return [[(1, 1024)], [(1, 1024)] * 32, [(1, 1024)] * 128, [(1, 8192)] * 8, [(1024, 1024)], [(8192, 8192)]]


def describe_requests(requests: Sequence[tuple[int, int]]) -> str:
    """The label of such a step, as `bench` picks rows."""
    queries, length = requests[0]
    return f"{len(requests)} requests of {length} tokens rows={queries * len(requests)}"


@dataclass(frozen=True)
class AttentionStep:
    """Everything that one layer is given in one step; the cache is in NHD."""

    q_THD: torch.Tensor
    k_TKD: torch.Tensor
    v_TKD: torch.Tensor
    kv_cache: tuple[torch.Tensor, torch.Tensor]
    geometry: BatchGeometry
    prologue: AttentionPrologue | None
    sinks: torch.Tensor | None

    def to(self, device: str) -> AttentionStep:
        """The same step with every tensor on `device`."""
        return moved(self, device)

    def run(self, plan: AttentionPlan) -> tuple[torch.Tensor, ...]:
        """The output, and the cache in NHD as the step leaves it; the cache of the step itself is left alone."""
        kv_cache = self.cache_for(plan)
        return self.run_in_place(plan, kv_cache), *restore_nhd(plan.layout, kv_cache)

    def cache_for(self, plan: AttentionPlan) -> tuple[torch.Tensor, ...]:
        """What the step's cache holds, in a new cache of the plan's layout."""
        return tuple(cache.clone() for cache in from_nhd(plan.layout, *self.kv_cache))

    def run_in_place(self, plan: AttentionPlan, kv_cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The output; `kv_cache` is of the plan's layout, and written."""
        metadata = plan.build_metadata(self.geometry)
        return plan.forward(
            self.q_THD, self.k_TKD, self.v_TKD, kv_cache, metadata, prologue=self.prologue, sinks=self.sinks
        )


def make_geometry(
    requests: Sequence[tuple[int, int]], block_size: int, *, scattered: bool = False, seed: int = 0
) -> tuple[BatchGeometry, int]:
    """The geometry of requests given as (queries, tokens in all), and the number of blocks that it needs."""
    needed = [-(-length // block_size) for _, length in requests]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)) if scattered else None
    free = order.tolist() if order is not None else list(range(num_blocks))
    # Entries past a request's blocks are undefined: a number far outside shows who reads them.
    block_table = torch.full((len(requests), max(needed) + 1), 10**6, dtype=torch.int32)
    slots: list[int] = []
    starts = [0]
    num_decodes = sum(num_queries == 1 for num_queries, _ in requests)
    for index, (num_queries, length) in enumerate(requests):
        blocks, free = free[: needed[index]], free[needed[index] :]
        block_table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        slots += [blocks[p // block_size] * block_size + p % block_size for p in range(length - num_queries, length)]
        starts.append(starts[-1] + num_queries)
    geometry = BatchGeometry(
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([length for _, length in requests], dtype=torch.int32),
        block_table=block_table,
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        num_reqs=len(requests),
        num_tokens=starts[-1],
        num_decodes=num_decodes,
        max_query_len=max(num_queries for num_queries, _ in requests),
        max_seq_len=max(length for _, length in requests),
        num_prompt_keys=sum(length for _, length in requests[num_decodes:]),
        prompts_are_new=all(num_queries == length for num_queries, length in requests[num_decodes:]),
    )
    return geometry, num_blocks


def make_step(
    problem: AttentionProblem,
    requests: Sequence[tuple[int, int]],
    *,
    scattered: bool = False,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    norms: bool = False,
    seed: int = 0,
) -> AttentionStep:
    """A random step; q, k and v are slices of one projection, as layers give them.

    Args:
        problem: the layer.
        requests: (queries, tokens in all) of each.
        scattered: blocks in random order rather than one run a request.
        rotary_dim: None for no rotation.
        interleaved: the kind of rotation.
        norms: head norms on queries and keys.
        seed: of everything.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: str = problem.dtype) -> Any:
        return torch.randn(*shape, generator=generator).to(getattr(torch, dtype))

    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=scattered, seed=seed)
    heads = (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
    qkv = random(geometry.num_tokens, sum(heads) * problem.head_dim)
    parts = qkv.split([count * problem.head_dim for count in heads], dim=1)
    q, k, v = (part.unflatten(1, (count, problem.head_dim)) for part, count in zip(parts, heads, strict=True))
    block = (problem.block_size, problem.num_kv_heads, problem.head_dim)
    prologue = None
    if rotary_dim is not None or norms:
        num_positions = max(_MIN_POSITIONS, geometry.max_seq_len)
        angles = None if rotary_dim is None else random(num_positions, rotary_dim // 2, dtype="float32") * 3
        prologue = AttentionPrologue(
            positions=torch.cat([torch.arange(length - queries, length) for queries, length in requests]),
            cos_sin_cache=None if angles is None else torch.cat((angles.cos(), angles.sin()), dim=1),
            interleaved=interleaved,
            q_norm_weight=random(problem.head_dim) if norms else None,
            k_norm_weight=random(problem.head_dim) if norms else None,
        )
    return AttentionStep(
        q_THD=q,
        k_TKD=k,
        v_TKD=v,
        kv_cache=tuple(random(num_blocks, *block, dtype=problem.cache_dtype) for _ in range(2)),
        geometry=geometry,
        prologue=prologue,
        sinks=random(problem.num_heads, dtype="float32") if problem.has_sinks else None,
    )


def moved(value: Any, device: str) -> Any:
    """A struct, tuple or tensor with every tensor in it on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: moved(getattr(value, field.name), device) for field in fields(value)})
    return value
