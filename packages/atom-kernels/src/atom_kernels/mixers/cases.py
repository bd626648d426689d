"""Random steps of a mixer, for `check`, `bench` and tests: any requests, over adjacent or scattered blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from atom_kernels.mixers.backend import CacheConversion
from atom_kernels.mixers.plan import MixerPlan
from atom_kernels.protocols import BatchGeometry, Caches


@dataclass(frozen=True)
class MixerStep:
    """Everything that one layer is given in one step.

    Attributes:
        inputs: as the operator's contract lists them.
        weights: the layer's weights by their names.
        caches: the layer's caches, in the problem's own layout.
        geometry: where the batch's tokens lie.
        prologue: norms and rotation, None for none.
    """

    inputs: tuple[torch.Tensor, ...]
    weights: Mapping[str, torch.Tensor]
    caches: Caches
    geometry: BatchGeometry
    prologue: Any

    def to(self, device: str) -> MixerStep:
        """The same step with every tensor on `device`."""
        return moved(self, device)

    def run(self, plan: MixerPlan) -> tuple[torch.Tensor, ...]:
        """The output, and the caches in the problem's own layout; those of the step itself are left alone."""
        caches = self.caches_for(plan)
        out = self.run_in_place(plan, caches)
        is_usual = plan.layout == plan.problem.layout
        return out, *(caches if is_usual else _conversion(plan).to_usual(plan.layout, caches))

    def caches_for(self, plan: MixerPlan) -> Caches:
        """What the step's caches hold, in new ones of the plan's layout."""
        is_usual = plan.layout == plan.problem.layout
        caches = self.caches if is_usual else _conversion(plan).from_usual(plan.layout, *self.caches)
        return tuple(cache.clone() for cache in caches)

    def run_in_place(self, plan: MixerPlan, caches: Caches, *, weights: Any = None) -> torch.Tensor:
        """The output; `caches` are of the plan's layout, and written. `weights` are prepared unless they are given."""
        weights = plan.prepare(self.weights) if weights is None else weights
        metadata = plan.build_metadata(self.geometry)
        return plan.forward(self.inputs, caches, metadata, weights=weights, prologue=self.prologue)


def _conversion(plan: MixerPlan) -> CacheConversion:
    if plan.conversion is None:
        raise ValueError(f"{plan.backend} reads the cache layout {plan.layout.name} and does not say what it holds")
    return plan.conversion


def bench_requests(device: str) -> list[list[tuple[int, int]]]:
    """Steps to measure, as requests of (queries, tokens in all): decodes and a prompt, as many as fill the device."""
    if device == "cpu":
        return [[(1, 512)], [(1, 512)] * 16, [(512, 512)]]
    return [[(1, 1024)], [(1, 1024)] * 32, [(1, 1024)] * 128, [(1, 8192)] * 8, [(1024, 1024)], [(8192, 8192)]]


def describe_requests(requests: Sequence[tuple[int, int]]) -> str:
    """The label of such a step, as `bench` picks rows."""
    queries, length = requests[0]
    return f"{len(requests)} requests of {length} tokens rows={queries * len(requests)}"


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


def moved(value: Any, device: str) -> Any:
    """A struct, mapping, tuple or tensor with every tensor in it on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: moved(getattr(value, field.name), device) for field in fields(value)})
    return value
