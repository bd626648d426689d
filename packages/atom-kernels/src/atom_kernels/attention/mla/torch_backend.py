"""Latent attention by torch operators: whole prompts with expanded keys and values, the rest absorbed.

Absorbed means that a query is multiplied by the weights that would make keys of latents, and attends to the latents
themselves: all heads share one key and value head, which is the cache itself, without a copy of adjacent blocks.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, L latent_dim, S slots of the
cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from atom_kernels.attention import torch_backend as paged
from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.mla.absorption import AbsorbedWeights, absorb, split_kv_b
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

# Whole prompts up to so many tokens are not worth expanding.
_SHORT = 16


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    return paged.supports(_absorbed(problem), platform)


@dataclass(frozen=True)
class TorchMlaMetadata:
    """Where each request's rows lie, and the pieces of its latents; None for a whole prompt, which needs no cache."""

    slot_mapping: torch.Tensor
    requests: tuple[tuple[slice, tuple[paged.Piece, ...] | None], ...]


class TorchMla(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: MlaProblem) -> None:
        self.problem = problem
        absorbed = _absorbed(problem)
        self.attention = paged.TorchAttention(absorbed, absorbed.layout)

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AbsorbedWeights:
        return split_kv_b(self.problem, weights["kv_b"])

    def build_metadata(self, geometry: BatchGeometry) -> TorchMlaMetadata:
        metadata = self.attention.build_metadata(geometry)
        starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
        lengths = [lengths[r] for r in range(geometry.num_reqs) if starts[r + 1] > starts[r]]
        requests = tuple(
            (rows, None if rows.stop - rows.start == length and length > _SHORT else pieces)
            for (rows, pieces), length in zip(metadata.requests, lengths, strict=True)
        )
        return TorchMlaMetadata(metadata.slot_mapping, requests)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TorchMlaMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv_TL = inputs
        (cache,) = caches
        q_THD, latent_TL = apply_mla_prologue(self.problem, q_THD, kv_TL, prologue)
        write_cache(caches, (latent_TL[: len(metadata.slot_mapping)],), metadata.slot_mapping)
        cached_SL = cache.flatten(0, 1)
        out_THV = q_THD.new_zeros(*q_THD.shape[:2], self.problem.v_head_dim)
        for rows, pieces in metadata.requests:
            out_THV[rows] = self.attend_request(q_THD[rows], latent_TL[rows], cached_SL, pieces, weights)
        return out_THV

    def attend_request(
        self,
        q_THD: torch.Tensor,
        latent_TL: torch.Tensor,
        cached_SL: torch.Tensor,
        pieces: tuple[paged.Piece, ...] | None,
        weights: AbsorbedWeights,
    ) -> torch.Tensor:
        """Outputs of one request over latents by slot; its own new ones are all of them where there are no pieces."""
        if pieces is None:
            return self._expanded(q_THD, latent_TL, weights)
        cached_S1L = cached_SL.unsqueeze(1)
        found_THL, _ = self.attention.attend_request(
            absorb(self.problem, q_THD, weights), cached_S1L, cached_S1L, pieces
        )
        found_THC = found_THL[..., : self.problem.kv_lora_rank].to(q_THD.dtype)
        return torch.einsum("thc,hvc->thv", found_THC, weights.value)

    def _expanded(self, q_THD: torch.Tensor, latent_TL: torch.Tensor, weights: AbsorbedWeights) -> torch.Tensor:
        """A whole prompt, of which every token is new."""
        latent_TC, rotary_key = latent_TL.split([self.problem.kv_lora_rank, self.problem.qk_rope_head_dim], dim=-1)
        k_HTN = torch.matmul(latent_TC, weights.key.transpose(1, 2))
        k_HTD = torch.cat((k_HTN, rotary_key.expand(k_HTN.shape[0], -1, -1)), dim=-1)
        v_HTV = torch.matmul(latent_TC, weights.value.transpose(1, 2))
        q_1HTD = q_THD.transpose(0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(
            q_1HTD, k_HTD.unsqueeze(0), v_HTV.unsqueeze(0), is_causal=True, scale=self.problem.scale
        )
        return out[0].transpose(0, 1)


def _absorbed(problem: MlaProblem) -> AttentionProblem:
    """Attention of all heads to one that is both key and value; of its output the first kv_lora_rank elements count."""
    return AttentionProblem(
        num_heads=problem.num_heads,
        num_kv_heads=1,
        head_dim=problem.latent_dim,
        scale=problem.scale,
        dtype=problem.dtype,
        cache=problem.cache,
        block_size=problem.block_size,
    )


BACKEND = MixerBackend(name="torch", supports=supports, create=lambda problem, layout: TorchMla(problem))
