"""The lightning index over pages, written to be read: request by request, in float32.

Shapes: T tokens, H index heads, D head_dim, L keys of a request, K top_k.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import read_tokens, write_cache
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.rotary.contract import apply_rotary

if TYPE_CHECKING:
    from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
    from atom_kernels.protocols import BatchGeometry, Caches


def lightning_index(
    q_THD: torch.Tensor,
    head_weights_TH: torch.Tensor,
    caches: Caches,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    top_k: int,
    scale: float,
) -> torch.Tensor:
    """The positions that each query attends to, of a batch that mixes decodes and chunks of prompts.

    The score of position s for token t is ``sum_h head_weight[t, h] * scale * relu(q[t, h] @ k[s])``, in float32. Of
    the positions up to its own a token gets the `top_k` with the highest scores, and of equal scores the lower
    positions; all of them where there are no more. DeepSeek-AI 2025, https://arxiv.org/abs/2512.02556, equation 1.

    Args:
        q_THD: queries, their leading part rotated; requests and blocks are as in `latent_attention`.
        head_weights_TH: what each head counts for each token.
        caches: ``[num_blocks, block_size, D]``, keys with their leading part rotated.

    Returns:
        int32 ``[T, K]``: positions in ascending order, and -1 behind the last; rows of no request have none.
    """
    chosen_TK = torch.full((len(q_THD), top_k), -1, dtype=torch.int32, device=q_THD.device)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for request, (first, last) in enumerate(itertools.pairwise(starts)):
        if first == last:
            continue
        [k_LD] = read_tokens(caches, block_table[request], lengths[request])
        products_THL = torch.einsum("thd,ld->thl", q_THD[first:last].float(), k_LD).relu()
        scores_TL = torch.einsum("thl,th->tl", products_THL, head_weights_TH[first:last].float() * scale)
        for row in range(first, last):
            num_visible = lengths[request] - (last - row) + 1
            best = best_positions(scores_TL[row - first, :num_visible], top_k)
            chosen_TK[row, : len(best)] = best
    return chosen_TK


def best_positions(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """int32, in ascending order: those of the `top_k` highest scores ``[..., L]``, of equal ones the first."""
    best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :top_k]
    return best.sort(dim=-1).values.int()


def rotate_index(
    q_THD: torch.Tensor, k_TD: torch.Tensor, prologue: IndexPrologue | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys as they are scored, in the dtype they came in."""
    if prologue is None:
        return q_THD, k_TD
    q_THD, k_T1D = apply_rotary(
        q_THD, k_TD.unsqueeze(1), prologue.positions, prologue.cos_sin_cache, interleaved=prologue.interleaved
    )
    return q_THD, k_T1D.squeeze(1)


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceIndex(MixerRunner):
    """Rotation, cache write and `lightning_index` one after the other."""

    problem: IndexProblem

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> None:
        return None

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: BatchGeometry,
        *,
        weights: None,
        prologue: IndexPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_TD, head_weights_TH = inputs
        q_THD, k_TD = rotate_index(q_THD, k_TD, prologue)
        written = slice(0, metadata.num_tokens)
        write_cache(caches, (k_TD[written],), metadata.slot_mapping[written])
        return lightning_index(
            q_THD,
            head_weights_TH,
            caches,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            top_k=self.problem.top_k,
            scale=self.problem.scale,
        )


BACKEND = MixerBackend(
    name="reference",
    create=lambda problem, layout: ReferenceIndex(problem),
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
