"""Latent attention over a part of each context, written to be read: request by request, in float32.

Shapes: T tokens, H heads of all ranks, C kv_lora_rank, K keys of the part, Q queries of a request.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import read_tokens, write_cache
from atom_kernels.attention.context.part import PartOfStep, part_of_step
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.context.problem import PartialMlaProblem
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.protocols import BatchGeometry, Caches


def partial_latent_attention(
    q_THL: torch.Tensor,
    caches: Caches,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    kv_lora_rank: int,
    scale: float,
    num_ranks: int,
    rank: int,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal latent attention to the positions ``rank, rank + num_ranks, ...``, which alone are in the cache.

    The queries of request ``r`` are rows ``query_start_loc[r]:query_start_loc[r+1]`` and stand at the last positions of
    its ``seq_lens[r]`` tokens, whose part lies in the blocks ``block_table[r]``, one position behind the other.

    Args:
        q_THL: absorbed queries of all ranks, their rotary part last and rotated.
        caches, latent_scale: as in latent attention.

    Returns:
        float32 ``[T, H, C + 1]``: the mean latent, and the log-sum-exp of its scores. Rows of no request, and those
        that see nothing of the part, give zeros and minus infinity.
    """
    found_THX = nothing_found(q_THL, kv_lora_rank)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for request, (first, last) in enumerate(itertools.pairwise(starts)):
        positions_K = torch.arange(lengths[request], device=q_THL.device)[rank::num_ranks]
        if first == last or not len(positions_K):
            continue
        scales = None if latent_scale is None else [latent_scale]
        [cached_KL] = read_tokens(caches, block_table[request], len(positions_K), scales)
        positions_Q = torch.arange(lengths[request] - (last - first), lengths[request], device=q_THL.device)
        scores_HQK = torch.einsum("qhl,kl->hqk", q_THL[first:last].float(), cached_KL) * scale
        scores_HQK.masked_fill_(positions_K > positions_Q.unsqueeze(1), float("-inf"))
        lse_HQ = scores_HQK.logsumexp(-1)
        weights_HQK = (scores_HQK - lse_HQ.unsqueeze(-1)).exp().nan_to_num(0.0)
        found_THX[first:last, :, :-1] = torch.einsum("hqk,kc->qhc", weights_HQK, cached_KL[:, :kv_lora_rank])
        found_THX[first:last, :, -1] = lse_HQ.T
    return found_THX


def nothing_found(q_THL: torch.Tensor, kv_lora_rank: int) -> torch.Tensor:
    """The result for queries that see nothing."""
    found_THX = torch.zeros(*q_THL.shape[:2], kv_lora_rank + 1, device=q_THL.device)
    found_THX[..., -1] = float("-inf")
    return found_THX


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------


@dataclass(frozen=True)
class ReferencePartialMla(MixerRunner):
    """Prologue, cache write and `partial_latent_attention` one after the other."""

    problem: PartialMlaProblem

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> torch.Tensor | None:
        return weights.get("latent_scale")

    def build_metadata(self, geometry: BatchGeometry) -> tuple[BatchGeometry, PartOfStep]:
        return geometry, part_of_step(self.problem, geometry)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: tuple[BatchGeometry, PartOfStep],
        *,
        weights: torch.Tensor | None,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        (q_THL, kv_TL), (geometry, part) = inputs, metadata
        q_THL, kv_TL = apply_mla_prologue(self.problem.absorbed, q_THL, kv_TL, prologue)
        slots = part.geometry.slot_mapping
        write_cache(caches, (kv_TL[: len(slots)],), slots, None if weights is None else [weights])
        return partial_latent_attention(
            q_THL,
            caches,
            geometry.query_start_loc,
            geometry.seq_lens,
            geometry.block_table,
            kv_lora_rank=self.problem.kv_lora_rank,
            scale=self.problem.scale,
            num_ranks=self.problem.num_ranks,
            rank=self.problem.rank,
            latent_scale=weights,
        )


BACKEND = MixerBackend(
    name="reference",
    create=lambda problem, layout: ReferencePartialMla(problem),
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
