"""Sparse latent attention by our own C kernels: every row is a request of its own, over blocks of single latents.

Requests of up to `top_k` tokens are those of latent attention. Shapes: T tokens, R rows of longer requests, K top_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla import native_backend as dense
from atom_kernels.attention.mla.native_steps import NativeMlaMetadata, Rows, plan_step
from atom_kernels.attention.native_backend import Launch
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.mla.native_backend import NativeMlaWeights
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.attention.sparse.problem import SparseMlaProblem
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def supports(problem: SparseMlaProblem, platform: Platform) -> str | None:
    return dense.supports(problem.dense, platform)


@dataclass(frozen=True)
class ChosenRows:
    """Rows of long requests as the attention kernel takes them.

    Attributes:
        rows: where they lie in the step.
        blocks: int64 ids of the blocks of each of these requests.
        slots: int32 ``[R, K]``, which every layer fills; the block table of `launch`.
        launch: each row as a request.
    """

    rows: Rows
    blocks: tuple[torch.Tensor, ...]
    slots: torch.Tensor
    launch: Launch

    def fill_slots(self, chosen_TK: torch.Tensor, block_size: int) -> None:
        """From the positions that a layer's rows have chosen. What stands behind the last is any slot."""
        for (first, last, at), blocks in zip(self.rows.ranges, self.blocks, strict=True):
            chosen = chosen_TK[first:last].clamp(min=0).long()
            self.slots[at : at + last - first] = (blocks[chosen // block_size] * block_size + chosen % block_size).int()


@dataclass(frozen=True)
class NativeSparseMetadata:
    """One step: requests of up to `top_k` tokens, and the rows of others, if there are any."""

    dense: NativeMlaMetadata
    chosen: ChosenRows | None


class NativeSparseMla(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: SparseMlaProblem) -> None:
        self.problem = problem
        self._dense = dense.NativeMla(problem.dense)
        self._layer = dense.absorbed_layer(problem, 1)

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> NativeMlaWeights:
        return self._dense.prepare(weights)

    def build_metadata(self, geometry: BatchGeometry) -> NativeSparseMetadata:
        metadata = plan_step(self.problem.dense, geometry, longest=self.problem.top_k)
        starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
        long = [
            request
            for request in range(geometry.num_reqs)
            if starts[request + 1] > starts[request] and lengths[request] > self.problem.top_k
        ]
        if not long:
            return NativeSparseMetadata(metadata, None)
        ranges, positions, at = [], [], 0
        for request in long:
            first, last, length = starts[request], starts[request + 1], lengths[request]
            ranges.append((first, last, at))
            positions.append(torch.arange(length - (last - first), length, dtype=torch.int32))
            at += last - first
        visible = (torch.cat(positions) + 1).clamp(max=self.problem.top_k)
        ends = torch.arange(at + 1, dtype=torch.int32)
        slots = torch.zeros((at, self.problem.top_k), dtype=torch.int32)
        blocks = tuple(geometry.block_table[request].long() for request in long)
        launch = Launch.of(ends, ends[1:], visible, slots)
        return NativeSparseMetadata(metadata, ChosenRows(Rows(tuple(ranges), at), blocks, slots, launch))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativeSparseMetadata,
        *,
        weights: NativeMlaWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv_TL, chosen_TK = inputs
        step = self._dense.begin((q_THD, kv_TL), caches, metadata.dense, weights, prologue)
        self._dense.run(step)
        if metadata.chosen is not None:
            metadata.chosen.fill_slots(chosen_TK, self.problem.block_size)
            self._dense.run_absorbed(step, metadata.chosen.rows, metadata.chosen.launch, self._layer)
        return step.out


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=lambda problem, layout: NativeSparseMla(problem),
    cache_scales=ALL_SCALES,
)
