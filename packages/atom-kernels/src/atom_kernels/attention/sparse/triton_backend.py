"""Sparse latent attention by Triton: every row is a decode of its own, over a block table of single latents.

So the kernel of absorbed decodes serves as it is: the blocks of a row are the slots of its chosen latents. A step in
which nobody has more than `top_k` tokens is one of latent attention.

Shapes: T tokens, H heads, V v_head_dim, C kv_lora_rank, L latent_dim, K top_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla import triton_backend as dense
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom_kernels.attention.index.rows import RowsOfRequests
    from atom_kernels.attention.mla.absorption import AbsorbedWeights
    from atom_kernels.attention.mla.problem import MlaPrologue
    from atom_kernels.attention.sparse.problem import SparseMlaProblem
    from atom_kernels.attention.triton.launch import TritonMetadata
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def supports(problem: SparseMlaProblem, platform: Platform) -> str | None:
    return dense.supports(problem.dense, platform)


@dataclass(frozen=True)
class TritonSparseMetadata:
    """One step as latent attention sees it; and its rows, each a decode whose block table every layer writes anew.

    `rows` and `decodes` are None where nobody has more than `top_k` tokens.
    """

    dense: dense.TritonMlaMetadata
    rows: RowsOfRequests | None
    decodes: TritonMetadata | None


class TritonSparseMla(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: SparseMlaProblem) -> None:
        from atom_kernels.attention.index.triton_rows import rows_of_requests
        from atom_kernels.attention.sparse.triton_slots import chosen_slots

        self.problem = problem
        self._dense = dense.TritonMla(problem.dense)
        self._single = replace(self._dense.latents, block_size=1)
        self._rows_of_requests, self._chosen_slots = rows_of_requests, chosen_slots

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AbsorbedWeights:
        return self._dense.prepare(weights)

    def build_metadata(self, geometry: BatchGeometry) -> TritonSparseMetadata:
        metadata = self._dense.build_metadata(geometry)
        step, top_k = metadata.paged.step, self.problem.top_k
        if step.max_seq_len <= top_k or not step.num_tokens:
            return TritonSparseMetadata(metadata, None, None)
        rows = self._rows_of_requests(step, top_k)
        device, num_rows = rows.visible.device, step.num_tokens
        decodes = replace(
            step,
            query_start_loc=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            seq_lens=rows.visible,
            block_table=torch.empty((num_rows, top_k), dtype=torch.int32, device=device),
            num_reqs=num_rows,
            num_decodes=num_rows,
            max_decode_len=1,
            max_query_len=1,
            max_seq_len=top_k,
        )
        return TritonSparseMetadata(metadata, rows, self._single.build_metadata(decodes))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonSparseMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv_TL, chosen_TK = inputs
        rows, decodes, step = metadata.rows, metadata.decodes, metadata.dense.paged.step
        if rows is None or decodes is None:
            return self._dense.forward((q_THD, kv_TL), caches, metadata.dense, weights=weights, prologue=prologue)
        self._chosen_slots(chosen_TK, rows, step.block_table, self.problem.block_size, decodes.step.block_table)

        scale = dense.scale_of(caches, weights)
        if scale is not None and scale.dim() > 1:
            scale = scale.view(-1, 1, 1)

        def attend(query_THL: torch.Tensor, found_THC: torch.Tensor) -> None:
            latents = caches[0].view(-1, 1, 1, self.problem.latent_dim)
            scales = None if scale is None else (scale, scale)
            self._single.attend(query_THL, latents, latents, found_THC, decodes, scales=scales)

        return self._dense.forward_absorbed(
            (q_THD, kv_TL), caches, metadata.dense, weights=weights, prologue=prologue, attend=attend
        )


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=lambda problem, layout: TritonSparseMla(problem),
    cache_scales=ALL_SCALES,
)
