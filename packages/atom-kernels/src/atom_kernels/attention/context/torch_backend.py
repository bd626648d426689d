"""Latent attention over a part of each context by torch operators, on any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention import torch_backend as paged
from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.context.part import PartOfStep, part_of_step
from atom_kernels.attention.context.reference import nothing_found
from atom_kernels.attention.mla import torch_backend as whole
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.context.problem import PartialMlaProblem
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def supports(problem: PartialMlaProblem, platform: Platform) -> str | None:
    return whole.supports(problem.absorbed, platform)


@dataclass(frozen=True)
class TorchPartMetadata:
    """The step over the rank's part, and its requests as paged attention cuts them."""

    part: PartOfStep
    paged: paged.TorchMetadata


class TorchPartialMla(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: PartialMlaProblem) -> None:
        self.problem = problem
        self._attention = whole.TorchMla(problem.absorbed).attention

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> None:
        return None

    def build_metadata(self, geometry: BatchGeometry) -> TorchPartMetadata:
        part = part_of_step(self.problem, geometry)
        return TorchPartMetadata(part, self._attention.build_metadata(part.geometry))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TorchPartMetadata,
        *,
        weights: None,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        (q_THL, kv_TL), part = inputs, metadata.part
        q_THL, kv_TL = apply_mla_prologue(self.problem.absorbed, q_THL, kv_TL, prologue)
        slots = part.geometry.slot_mapping
        write_cache(caches, (kv_TL[: len(slots)],), slots)
        cached_S1L = caches[0].flatten(0, 1).unsqueeze(1)
        own_QHL, rank = part.of_rows(q_THL), self.problem.kv_lora_rank
        found_QHX = nothing_found(own_QHL, rank)
        for rows, pieces in metadata.paged.requests:
            latent, lse = self._attention.attend_request(own_QHL[rows], cached_S1L, cached_S1L, pieces)
            found_QHX[rows, :, :-1], found_QHX[rows, :, -1] = latent[..., :rank].float(), lse
        found_THX = nothing_found(q_THL, rank)
        part.place(found_QHX, found_THX)
        return found_THX


BACKEND = MixerBackend(name="torch", supports=supports, create=lambda problem, layout: TorchPartialMla(problem))
