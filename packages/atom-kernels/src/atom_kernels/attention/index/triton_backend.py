"""The lightning index by Triton: scores of all visible keys in float32, then the choice, some rows at a time.

Shapes: T tokens, H index heads, D head_dim, K top_k.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.dtypes import why_not_dtype
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.protocols.kv_cache import DTYPE_BYTES
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch
from atom_kernels.triton.limits import fitting

if TYPE_CHECKING:
    from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
    from atom_kernels.attention.index.rows import RowsOfRequests
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

_DTYPES = ("float32", "bfloat16", "float16")
_MAX_DIM = 256
_MAX_HEADS = 128
# Scores that exist at a time: 256 MiB.
_SCORES = 1 << 26
# Scores that a program has in registers; a choice is at most half of them.
_SEGMENT = 8192
# Programs that fill a large GPU a few times, and tiles that one of them takes at most.
_PROGRAMS = 1024
_MAX_TILES = 8


def supports(problem: IndexProblem, platform: Platform) -> str | None:
    reason = why_not_dtype(problem.dtype, _DTYPES)
    if reason is None and problem.top_k > _SEGMENT // 2:
        reason = f"written for a choice of up to {_SEGMENT // 2} positions, not {problem.top_k}"
    if reason is None and (problem.head_dim > _MAX_DIM or problem.num_heads > _MAX_HEADS):
        sizes = f"{problem.num_heads} of {problem.head_dim}"
        reason = f"written for up to {_MAX_HEADS} heads of up to {_MAX_DIM}, not {sizes}"
    return reason


@dataclass(frozen=True)
class ScoresConfig:
    """How scores are computed: keys of a tile, warps and pipeline stages."""

    block_n: int
    num_warps: int
    num_stages: int


def scores_config(problem: IndexProblem) -> ScoresConfig:
    if triton_interpret():
        return ScoresConfig(block_n=32, num_warps=4, num_stages=2)
    config = ScoresConfig(block_n=64 if problem.dtype == "float32" else 128, num_warps=4, num_stages=3)
    row = power_of_two(problem.head_dim) * DTYPE_BYTES[problem.dtype]
    # Queries pass through local memory beside the keys.
    queries = power_of_two(problem.num_heads) * row
    return fitting(config, "block_n", lambda config: config.block_n * row + queries // (config.num_stages - 1))


@dataclass(frozen=True)
class TritonIndexMetadata:
    """One step, dense, and its rows; `max_len` is a bound of what any of them sees."""

    step: BatchGeometry
    rows: RowsOfRequests
    max_len: int


class TritonIndex(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: IndexProblem) -> None:
        from atom_kernels.attention.index import triton_choose, triton_rows, triton_scores
        from atom_kernels.triton.support import dependent_launch

        self.problem = problem
        self._rows_of_requests = triton_rows.rows_of_requests
        self._prologue_kernel, self._scores_kernel = (
            triton_scores.index_prologue_kernel,
            triton_scores.index_scores_kernel,
        )
        self._choose_kernel = triton_choose.choose_kernel
        self._dependent_launch = dependent_launch
        self._config = scores_config(problem)
        self._segment = max(128 if triton_interpret() else _SEGMENT, 2 * power_of_two(problem.top_k))

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> None:
        return None

    def build_metadata(self, geometry: BatchGeometry) -> TritonIndexMetadata:
        step = geometry.dense()
        return TritonIndexMetadata(step, self._rows_of_requests(step), step.max_seq_len)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonIndexMetadata,
        *,
        weights: Any,
        prologue: IndexPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_TD, head_weights_TH = inputs
        (cache,), top_k, num_tokens = caches, self.problem.top_k, metadata.step.num_tokens
        for x in inputs:
            if x.dtype is not cache.dtype:
                raise TypeError(f"a lightning index was planned for {cache.dtype}, got {x.dtype}")
        chosen_TK = torch.empty((len(q_THD), top_k), dtype=torch.int32, device=q_THD.device)
        chosen_TK[num_tokens:].fill_(-1)
        if not num_tokens:
            return chosen_TK
        q_THD = self._write_cache(q_THD[:num_tokens], k_TD, cache, metadata, prologue)
        # Where no row has a choice, nothing is scored.
        scored = metadata.max_len > top_k
        step = max(1, _SCORES // metadata.max_len) if scored else num_tokens
        scores = torch.empty((1, 1), dtype=torch.float32, device=q_THD.device)
        for first in range(0, num_tokens, step):
            count = min(step, num_tokens - first)
            if scored:
                scores = self._score((q_THD, head_weights_TH, cache), metadata, first, count)
            self._choose(scores, metadata, chosen_TK, first, count)
        return chosen_TK

    def _choose(
        self, scores: torch.Tensor, metadata: TritonIndexMetadata, chosen_TK: torch.Tensor, first: int, count: int
    ) -> None:
        """Fills `count` rows of the choice, in as many rounds as the longest row may take."""
        top_k, device = self.problem.top_k, scores.device
        positions = torch.empty((1, 1), dtype=torch.int32, device=device)
        longest = metadata.max_len if metadata.max_len > top_k else 1
        for level in itertools.count():
            segments = -(-longest // self._segment)
            left = segments * top_k if segments > 1 else 1
            best_scores = torch.empty((count, left), dtype=torch.float32, device=device)
            best_positions = torch.empty((count, left), dtype=torch.int32, device=device)
            launch(
                self._choose_kernel, (segments, count),
                scores, positions, metadata.rows.visible, chosen_TK, best_scores, best_positions,
                first, scores.stride(0), left,
                LEVEL=level,
                TOP_K=top_k,
                SEGMENT=self._segment,
                num_warps=4 if triton_interpret() else 16,
                **self._dependent_launch(),
            )  # fmt: skip
            if segments == 1:
                return
            scores, positions, longest = best_scores, best_positions, left

    def _score(
        self, tensors: tuple[torch.Tensor, ...], metadata: TritonIndexMetadata, first: int, count: int
    ) -> torch.Tensor:
        """float32 ``[count, max_len]``: each row has what it sees, or nothing if that is `top_k` positions or fewer."""
        problem, step, (q_THD, head_weights_TH, cache) = self.problem, metadata.step, tensors
        scores = torch.empty((count, metadata.max_len), dtype=torch.float32, device=q_THD.device)
        tiles = -(-metadata.max_len // self._config.block_n)
        each = min(max(tiles * count // _PROGRAMS, 1), _MAX_TILES)
        # A power of two, so that few kernels are compiled.
        each = 1 << (each.bit_length() - 1)
        launch(
            self._scores_kernel, (-(-tiles // each), count),
            q_THD, head_weights_TH, cache, scores, metadata.rows.requests, metadata.rows.visible, step.block_table,
            problem.scale, first, head_weights_TH.stride(0), cache.stride(0), cache.stride(1),
            step.block_table.stride(0), step.block_table.shape[1], metadata.max_len,
            NUM_HEADS=problem.num_heads,
            HEAD_DIM=problem.head_dim,
            BLOCK_SIZE=problem.block_size,
            TOP_K=problem.top_k,
            TILES=each,
            BLOCK_N=self._config.block_n,
            BLOCK_H=max(16, power_of_two(problem.num_heads)),
            BLOCK_D=max(16, power_of_two(problem.head_dim)),
            # The interpreter multiplies float32 matrices only.
            UPCAST=triton_interpret() and cache.dtype is not torch.float32,
            num_warps=self._config.num_warps,
            num_stages=self._config.num_stages,
            **self._dependent_launch(),
        )  # fmt: skip
        return scores

    def _write_cache(
        self,
        q_THD: torch.Tensor,
        k_TD: torch.Tensor,
        cache: torch.Tensor,
        metadata: TritonIndexMetadata,
        prologue: IndexPrologue | None,
    ) -> torch.Tensor:
        """Rotated keys to their slots; rotated queries, contiguous."""
        problem = self.problem
        if q_THD.stride()[1:] != (problem.head_dim, 1):
            q_THD = q_THD.contiguous()
        query = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        block_d = power_of_two(problem.head_dim)
        block_h = min(power_of_two(problem.num_heads), max(1, 2048 // block_d))
        positions, cos_sin = (None, None) if prologue is None else (prologue.positions, prologue.cos_sin_cache)
        launch(
            self._prologue_kernel, (len(q_THD), -(-problem.num_heads // block_h) + 1),
            q_THD, k_TD, query, cache, metadata.step.slot_mapping, positions, cos_sin,
            q_THD.stride(0), k_TD.stride(0), cache.stride(0), cache.stride(1),
            NUM_HEADS=problem.num_heads,
            HEAD_DIM=problem.head_dim,
            ROTARY_DIM=0 if prologue is None else problem.rotary_dim,
            INTERLEAVED=prologue is not None and prologue.interleaved,
            BLOCK_SIZE=problem.block_size,
            BLOCK_H=block_h,
            BLOCK_D=block_d,
            num_warps=4,
            **self._dependent_launch(),
        )  # fmt: skip
        return query


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=lambda problem, layout: TritonIndex(problem),
    cache_scales=ALL_SCALES,
)
