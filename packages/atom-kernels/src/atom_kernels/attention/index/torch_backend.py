"""The lightning index by torch operators: some queries of a request at a time against all of its keys.

Shapes: T tokens, Q queries of a request, H index heads, D head_dim, S slots of the cache, L keys of a request, K top_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.index.reference import best_positions, rotate_index
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

_DTYPES = ("float32", "bfloat16", "float16")
# Products of heads and keys that exist at a time.
_PRODUCTS = 1 << 24


def supports(problem: IndexProblem, platform: Platform) -> str | None:
    return why_not_dtype(problem.dtype, _DTYPES)


@dataclass(frozen=True)
class RequestKeys:
    """One request of a step: its rows, and where its keys lie; None where every row sees `top_k` of them or fewer."""

    rows: slice
    length: int
    slots: torch.Tensor | None


@dataclass(frozen=True)
class TorchIndexMetadata:
    """One step."""

    slot_mapping: torch.Tensor
    requests: tuple[RequestKeys, ...]


def slots_of(block_ids: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """int64 ``[length]``: where each token of a request lies."""
    blocks = block_ids[: -(-length // block_size)].to(torch.int64)
    return (blocks.unsqueeze(1) * block_size + torch.arange(block_size, device=blocks.device)).flatten()[:length]


@dataclass(frozen=True)
class TorchIndex(MixerRunner):
    """See the module's docstring."""

    problem: IndexProblem

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> None:
        return None

    def build_metadata(self, geometry: BatchGeometry) -> TorchIndexMetadata:
        starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
        requests = []
        for request in range(geometry.num_reqs):
            rows, length = slice(starts[request], starts[request + 1]), lengths[request]
            if rows.stop > rows.start:
                scored = length > self.problem.top_k
                blocks = geometry.block_table[request]
                requests.append(
                    RequestKeys(rows, length, slots_of(blocks, length, self.problem.block_size) if scored else None)
                )
        num_tokens = min(geometry.num_tokens, geometry.slot_mapping.shape[0])
        return TorchIndexMetadata(geometry.slot_mapping[:num_tokens], tuple(requests))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TorchIndexMetadata,
        *,
        weights: Any,
        prologue: IndexPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_TD, head_weights_TH = inputs
        (cache,) = caches
        q_THD, k_TD = rotate_index(q_THD, k_TD, prologue)
        write_cache(caches, (k_TD[: len(metadata.slot_mapping)],), metadata.slot_mapping)
        k_SD, top_k = cache.flatten(0, 1), self.problem.top_k
        chosen_TK = torch.full((len(q_THD), top_k), -1, dtype=torch.int32, device=q_THD.device)
        for request in metadata.requests:
            rows, length = request.rows, request.length
            positions = torch.arange(length - (rows.stop - rows.start), length, device=q_THD.device)
            if request.slots is None:
                every = torch.arange(length, dtype=torch.int32, device=q_THD.device)
                chosen_TK[rows, :length] = torch.where(every <= positions[:, None], every, -1)
                continue
            k_LD = k_SD[request.slots].float()
            step = max(1, _PRODUCTS // (self.problem.num_heads * length))
            for first in range(rows.start, rows.stop, step):
                some = slice(first, min(first + step, rows.stop))
                seen = positions[first - rows.start : some.stop - rows.start]
                chosen_TK[some] = self._choose(q_THD[some], head_weights_TH[some], k_LD, seen)
        return chosen_TK

    def _choose(
        self, q_QHD: torch.Tensor, head_weights_QH: torch.Tensor, k_LD: torch.Tensor, positions_Q: torch.Tensor
    ) -> torch.Tensor:
        """The rows of some queries, at `positions_Q`."""
        products_QHL = (q_QHD.float() @ k_LD.T).relu_()
        weights_Q1H = (head_weights_QH.float() * self.problem.scale).unsqueeze(1)
        scores_QL = torch.bmm(weights_Q1H, products_QHL).squeeze(1)
        unseen_QL = torch.arange(len(k_LD), device=k_LD.device) > positions_Q[:, None]
        best_QK = best_positions(scores_QL.masked_fill_(unseen_QL, float("-inf")), self.problem.top_k)
        return torch.where(best_QK <= positions_Q[:, None], best_QK, -1)


BACKEND = MixerBackend(
    name="torch",
    supports=supports,
    create=lambda problem, layout: TorchIndex(problem),
    cache_scales=ALL_SCALES,
)
