"""Latent attention over a part of each context by Triton: the kernels of whole caches, with their log-sum-exp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.context.part import PartOfStep, part_of_step
from atom_kernels.attention.context.reference import nothing_found
from atom_kernels.attention.mla import triton_backend as whole
from atom_kernels.attention.mla.absorption import AbsorbedWeights, split_kv_b
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.context.problem import PartialMlaProblem
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.attention.triton.launch import TritonMetadata
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def supports(problem: PartialMlaProblem, platform: Platform) -> str | None:
    return whole.supports(problem.absorbed, platform)


@dataclass(frozen=True)
class TritonPartMetadata:
    """The step over the rank's part; `written` has all its tokens, and `read` the queries that see something."""

    part: PartOfStep
    written: whole.TritonMlaMetadata
    read: TritonMetadata


class TritonPartialMla(MixerRunner):
    """See the module's docstring. The part is worked out on the host: no step can be captured."""

    def __init__(self, problem: PartialMlaProblem) -> None:
        self.problem = problem
        self._whole = whole.TritonMla(problem.absorbed)

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AbsorbedWeights:
        return replace(split_kv_b(self.problem, weights["kv_b"]), scale=weights.get("latent_scale"))

    def build_metadata(self, geometry: BatchGeometry) -> TritonPartMetadata:
        part, latents = part_of_step(self.problem, geometry), self._whole.latents
        read = latents.build_metadata(part.geometry)
        tokens = replace(geometry, slot_mapping=part.geometry.slot_mapping).dense()
        return TritonPartMetadata(part, whole.TritonMlaMetadata(replace(read, step=tokens), None), read)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonPartMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        found_THX, part = nothing_found(inputs[0], self.problem.kv_lora_rank), metadata.part
        if not metadata.written.paged.step.num_tokens:
            return found_THX
        placed_THL = self._whole.place(inputs, caches, metadata.written, weights=weights, prologue=prologue)
        own_QHL = part.of_rows(placed_THL)
        if len(own_QHL):
            latent_QHC = own_QHL.new_empty(*own_QHL.shape[:2], self.problem.kv_lora_rank)
            lse_QH = torch.empty(own_QHL.shape[:2], device=own_QHL.device)
            self._whole.look(own_QHL, latent_QHC, caches, metadata.read, weights=weights, lse_TH=lse_QH)
            part.place(torch.cat((latent_QHC.float(), lse_QH.unsqueeze(-1)), -1), found_THX)
        return found_THX


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=lambda problem, layout: TritonPartialMla(problem),
    cache_scales=ALL_SCALES,
)
