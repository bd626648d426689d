"""Attention over pages by torch operators, without copying a run of adjacent blocks.

A request's keys are cut at multiples of `SEGMENT` tokens. A segment whose blocks are adjacent is a strided slice of the
cache; another one is gathered. Partial results are merged by log-sum-exp in order. The cuts depend on nothing but a
request's own length, so its result does not depend on its neighbors or on where its blocks lie.

Shapes: T tokens, H query heads, K key/value heads, G = H / K, D head_dim, Q queries of a request, L keys of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

SEGMENT = 512
_DTYPES = ("float32", "bfloat16", "float16")


def supports(problem: AttentionProblem, platform: Platform) -> str | None:
    if problem.sees_ahead:
        return "written for tokens that see nothing behind them"
    if problem.dtype not in _DTYPES:
        return f"computes in {', '.join(_DTYPES)}, not in {problem.dtype}"
    if problem.kv_cache_dtype != problem.dtype:
        return f"reads the cache in place, so its dtype must be {problem.dtype}, not {problem.kv_cache_dtype}"
    return None


@dataclass(frozen=True)
class Piece:
    """The part of one segment that some queries of one request see.

    Attributes:
        rows: the rows of the request's queries that see some of the keys.
        slots: where the keys lie: a slice if they are adjacent, else int64 indices.
        mask: "none" if every row sees every key, "causal" if the two are the same tokens, or bool ``[Q, L]``.
    """

    rows: slice
    slots: slice | torch.Tensor
    mask: str | torch.Tensor


@dataclass(frozen=True)
class TorchMetadata:
    """Where each request's rows lie in the flat batch, and its pieces in order of position."""

    slot_mapping: torch.Tensor
    requests: tuple[tuple[slice, tuple[Piece, ...]], ...]


class TorchAttention(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem = problem
        self.layout = layout

    def build_metadata(self, geometry: BatchGeometry) -> TorchMetadata:
        starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
        requests = []
        for request in range(geometry.num_reqs):
            rows = slice(starts[request], starts[request + 1])
            if rows.stop > rows.start:
                pieces = self._cut(rows.stop - rows.start, lengths[request], geometry.block_table[request])
                requests.append((rows, tuple(pieces)))
        num_tokens = min(geometry.num_tokens, geometry.slot_mapping.shape[0])
        return TorchMetadata(geometry.slot_mapping[:num_tokens], tuple(requests))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TorchMetadata,
        *,
        weights: torch.Tensor | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        (q_THD, k_TKD, v_TKD), sinks = inputs, weights
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        num_tokens = len(metadata.slot_mapping)
        write_cache(caches, (k_TKD[:num_tokens], v_TKD[:num_tokens]), metadata.slot_mapping)
        k_SKD, v_SKD = (cache.flatten(0, 1) for cache in caches)
        out_THD = torch.zeros(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        for rows, pieces in metadata.requests:
            out, lse = self.attend_request(q_THD[rows], k_SKD, v_SKD, pieces)
            if sinks is not None:
                out = out.float() * torch.sigmoid(lse - sinks.float()).unsqueeze(-1)
            out_THD[rows] = out
        return out_THD

    def attend_request(
        self, q_QHD: torch.Tensor, k_SKD: torch.Tensor, v_SKD: torch.Tensor, pieces: tuple[Piece, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs ``[Q, H, D]`` of one request over keys and values by slot, and their log-sum-exp ``[Q, H]``."""
        if len(pieces) == 1:
            return self._attend_piece(q_QHD, k_SKD, v_SKD, pieces[0])
        out_QHD = torch.zeros(q_QHD.shape, device=q_QHD.device)
        lse_QH = torch.full(q_QHD.shape[:2], float("-inf"), device=q_QHD.device)
        for piece in pieces:
            partial, partial_lse = self._attend_piece(q_QHD[piece.rows], k_SKD, v_SKD, piece)
            before = lse_QH[piece.rows]
            after = torch.logaddexp(before, partial_lse)
            out_QHD[piece.rows] *= torch.exp(before - after).unsqueeze(-1)
            out_QHD[piece.rows] += partial.float() * torch.exp(partial_lse - after).unsqueeze(-1)
            lse_QH[piece.rows] = after
        return out_QHD, lse_QH

    def _attend_piece(
        self, q_QHD: torch.Tensor, k_SKD: torch.Tensor, v_SKD: torch.Tensor, piece: Piece
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs ``[Q, H, D]`` over the keys of one piece, and their log-sum-exp ``[Q, H]`` in float32."""
        num_queries, num_heads, head_dim = q_QHD.shape
        k_KLD, v_KLD = k_SKD[piece.slots].transpose(0, 1), v_SKD[piece.slots].transpose(0, 1)
        num_kv_heads = k_KLD.shape[0]
        q_KGQD = q_QHD.view(num_queries, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        if isinstance(piece.mask, str) and piece.mask == "causal":
            # Its own kernel skips half of the work, and takes the heads of a group one after the other.
            group = range(q_KGQD.shape[1])
            parts = [self._attend(q_KGQD[:, i], k_KLD, v_KLD, causal=True) for i in group]
            out = torch.stack([part[0] for part in parts], dim=1)
            lse = torch.stack([part[1] for part in parts], dim=1)
        else:
            mask = piece.mask.repeat(q_KGQD.shape[1], 1) if isinstance(piece.mask, torch.Tensor) else None
            out, lse = self._attend(q_KGQD.flatten(1, 2), k_KLD, v_KLD, mask=mask)
        out_QHD = out.view(q_KGQD.shape).permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)
        return out_QHD, lse.view(q_KGQD.shape[:3]).permute(2, 0, 1).reshape(num_queries, num_heads)

    def _attend(
        self,
        q_KQD: torch.Tensor,
        k_KLD: torch.Tensor,
        v_KLD: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.problem.soft_cap is not None or q_KQD.device.type != "cpu":
            return self._attend_by_matmul(q_KQD, k_KLD, v_KLD, mask, causal)
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=q_KQD.dtype).masked_fill_(~mask, float("-inf"))
        # The operator behind scaled_dot_product_attention, called by name because it gives the log-sum-exp too.
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_KQD.unsqueeze(0),
            k_KLD.unsqueeze(0),
            v_KLD.unsqueeze(0),
            0.0,
            causal,
            attn_mask=bias,
            scale=self.problem.scale,
        )
        return out[0], lse[0]

    def _attend_by_matmul(
        self,
        q_KQD: torch.Tensor,
        k_KLD: torch.Tensor,
        v_KLD: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.matmul(q_KQD, k_KLD.transpose(1, 2)).float() * self.problem.scale
        if self.problem.soft_cap is not None:
            scores = self.problem.soft_cap * torch.tanh(scores / self.problem.soft_cap)
        if causal:
            mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).tril_()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.exp(scores - lse.unsqueeze(-1))
        return torch.matmul(weights.to(v_KLD.dtype), v_KLD), lse

    def _cut(self, num_queries: int, length: int, block_ids: torch.Tensor) -> list[Piece]:
        block_size, window = self.layout.block_size, self.problem.sliding_window
        first_position = length - num_queries
        blocks = block_ids[: -(-length // block_size)].to(torch.int64)
        slots = (blocks.unsqueeze(1) * block_size + torch.arange(block_size, device=blocks.device)).flatten()[:length]
        adjacent = torch.diff(slots).eq(1)
        lowest = 0 if window is None else max(0, first_position - window + 1)
        pieces = []
        for start in range(lowest // SEGMENT * SEGMENT, length, SEGMENT):
            begin, end = max(start, lowest), min(start + SEGMENT, length)
            first_row = max(0, begin - first_position)
            last_row = num_queries if window is None else min(num_queries, end - 1 + window - first_position)
            keys = slots[begin:end]
            if bool(adjacent[begin : end - 1].all()):
                keys = slice(int(keys[0]), int(keys[0]) + end - begin)
            mask = self._mask(range(first_position + first_row, first_position + last_row), range(begin, end))
            if isinstance(mask, torch.Tensor):
                mask = mask.to(blocks.device)
            pieces.append(Piece(slice(first_row, last_row), keys, mask))
        return pieces

    def _mask(self, queries: range, keys: range) -> str | torch.Tensor:
        window = self.problem.sliding_window
        in_window = window is None or keys[0] > queries[-1] - window
        if in_window and keys[-1] <= queries[0]:
            return "none"
        if in_window and queries == keys:
            return "causal"
        query_positions = torch.arange(queries.start, queries.stop).unsqueeze(1)
        key_positions = torch.arange(keys.start, keys.stop)
        visible = key_positions <= query_positions
        if window is not None:
            visible &= key_positions > query_positions - window
        return visible


BACKEND = MixerBackend(name="torch", supports=supports, create=TorchAttention)
