"""Latent attention over a part of each context by our own C kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.context.part import PartOfStep, part_of_step
from atom_kernels.attention.context.reference import nothing_found
from atom_kernels.attention.mla import native_backend as whole
from atom_kernels.attention.mla.native_kernels import MlaKernels
from atom_kernels.attention.mla.native_steps import Rows
from atom_kernels.attention.native_backend import Launch
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.context.problem import PartialMlaProblem
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def supports(problem: PartialMlaProblem, platform: Platform) -> str | None:
    return whole.supports(problem.absorbed, platform)


@dataclass(frozen=True)
class NativePartMetadata:
    """The step over the rank's part, and the same as the kernel takes it."""

    part: PartOfStep
    launch: Launch


class NativePartialMla(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: PartialMlaProblem) -> None:
        self.problem = problem
        self._absorbed = problem.absorbed
        self._kernels = MlaKernels(self._absorbed)
        self._layer = whole.absorbed_layer(self._absorbed, self._absorbed.block_size)

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return weights.get("latent_scale")

    def build_metadata(self, geometry: BatchGeometry) -> NativePartMetadata:
        part = part_of_step(self.problem, geometry)
        step = part.geometry.dense()
        firsts = step.query_start_loc
        launch = Launch.of(firsts[:-1].contiguous(), firsts[1:].contiguous(), step.seq_lens, step.block_table)
        return NativePartMetadata(part, launch)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativePartMetadata,
        *,
        weights: torch.Tensor | None,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        (q_THL, kv_TL), part, kernels = inputs, metadata.part, self._kernels
        dtype, cache_dtype = kernels.dtype, kernels.cache_dtype
        if not q_THL.dtype is kv_TL.dtype is dtype or caches[0].dtype is not cache_dtype:
            given = f"{q_THL.dtype}, {kv_TL.dtype} and {caches[0].dtype}"
            raise TypeError(f"latent attention was planned for {dtype} over a cache of {cache_dtype}, got {given}")
        first, q_THL = kernels.prologue(prologue), q_THL.contiguous()
        slots = part.geometry.slot_mapping
        kernels.write_latents(kv_TL, caches, slots, scale=weights, prologue=first)
        turned_THL, count = torch.empty_like(q_THL), len(slots)
        rows = Rows(((0, count, 0),), count)
        kernels.place_queries(q_THL, rows, turned_THL, copied=self.problem.kv_lora_rank, prologue=first)
        own_QHL = part.of_rows(turned_THL)
        latent_QHC = torch.empty(*own_QHL.shape[:2], self.problem.kv_lora_rank, dtype=dtype)
        lse_QH = torch.empty(own_QHL.shape[:2])
        kernels.attend(
            self._layer,
            metadata.launch,
            own_QHL,
            keys=caches[0],
            values=caches[0],
            out=latent_QHC,
            log_sums=lse_QH,
            scale=weights,
            token_scales=caches[1] if len(caches) > 1 else None,
        )
        found_THX = nothing_found(q_THL, self.problem.kv_lora_rank)
        part.place(torch.cat((latent_QHC.float(), lse_QH.unsqueeze(-1)), -1), found_THX)
        return found_THX


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=lambda problem, layout: NativePartialMla(problem),
    cache_scales=ALL_SCALES,
)
