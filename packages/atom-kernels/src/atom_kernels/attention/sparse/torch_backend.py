"""Sparse latent attention by torch operators: the chosen latents of some rows are gathered, and queries absorbed.

Requests of up to `top_k` tokens are those of latent attention.

Shapes: T tokens, Q rows at a time, H heads, D query_dim, V v_head_dim, C kv_lora_rank, L latent_dim, S slots of the
cache, K top_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.mla import torch_backend as dense
from atom_kernels.attention.mla.absorption import AbsorbedWeights, absorb
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.attention.sparse.problem import SparseMlaProblem
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

# Elements of gathered latents that exist at a time.
_GATHERED = 1 << 23


def supports(problem: SparseMlaProblem, platform: Platform) -> str | None:
    return dense.supports(problem.dense, platform)


@dataclass(frozen=True)
class TorchSparseMetadata:
    """One step as latent attention sees it, and the block ids of each request with more than `top_k` tokens."""

    dense: dense.TorchMlaMetadata
    blocks: tuple[torch.Tensor | None, ...]


class TorchSparseMla(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: SparseMlaProblem) -> None:
        self.problem = problem
        self._dense = dense.TorchMla(problem.dense)

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AbsorbedWeights:
        return self._dense.prepare(weights)

    def build_metadata(self, geometry: BatchGeometry) -> TorchSparseMetadata:
        starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
        blocks = tuple(
            geometry.block_table[request].long() if lengths[request] > self.problem.top_k else None
            for request in range(geometry.num_reqs)
            if starts[request + 1] > starts[request]
        )
        return TorchSparseMetadata(self._dense.build_metadata(geometry), blocks)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TorchSparseMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv_TL, chosen_TK = inputs
        (cache,) = caches
        slot_mapping = metadata.dense.slot_mapping
        q_THD, latent_TL = apply_mla_prologue(self.problem, q_THD, kv_TL, prologue)
        write_cache(caches, (latent_TL[: len(slot_mapping)],), slot_mapping)
        latent_SL = cache.flatten(0, 1)
        out_THV = q_THD.new_zeros(*q_THD.shape[:2], self.problem.v_head_dim)
        for (rows, pieces), blocks in zip(metadata.dense.requests, metadata.blocks, strict=True):
            q_QHD = q_THD[rows]
            if blocks is None:
                out_THV[rows] = self._dense.attend_request(q_QHD, latent_TL[rows], latent_SL, pieces, weights)
            else:
                out_THV[rows] = self._attend_chosen(q_QHD, chosen_TK[rows], latent_SL, blocks, weights)
        return out_THV

    def _attend_chosen(
        self,
        q_QHD: torch.Tensor,
        chosen_QK: torch.Tensor,
        latent_SL: torch.Tensor,
        blocks: torch.Tensor,
        weights: AbsorbedWeights,
    ) -> torch.Tensor:
        problem = self.problem
        absorbed_QHL = absorb(self.problem, q_QHD, weights)
        found_QHC = q_QHD.new_empty(*q_QHD.shape[:2], problem.kv_lora_rank)
        step = max(1, _GATHERED // (problem.top_k * problem.latent_dim))
        for first in range(0, len(q_QHD), step):
            some = slice(first, first + step)
            chosen = chosen_QK[some].long()
            present = chosen >= 0
            chosen = chosen.clamp(min=0)
            slots = blocks[chosen // problem.block_size] * problem.block_size + chosen % problem.block_size
            latent_QKL = latent_SL[slots]
            scores_QHK = (absorbed_QHL[some] @ latent_QKL.transpose(1, 2)).float() * problem.scale
            shares_QHK = scores_QHK.masked_fill_(~present.unsqueeze(1), float("-inf")).softmax(dim=-1)
            found_QHC[some] = shares_QHK.to(latent_QKL.dtype) @ latent_QKL[..., : problem.kv_lora_rank]
        return torch.einsum("thc,hvc->thv", found_QHC, weights.value)


BACKEND = MixerBackend(name="torch", supports=supports, create=lambda problem, layout: TorchSparseMla(problem))
