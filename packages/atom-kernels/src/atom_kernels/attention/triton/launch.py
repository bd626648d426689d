"""Launches of attention's Triton kernels over pages: a step's metadata, its decodes and its chunks of prompts.

Shapes: T tokens, H query heads, K key heads, D head_dim, E rope_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.hopper.configs import HopperConfig, heads_at_a_time
from atom_kernels.attention.triton.configs import DecodeConfig, PrefillConfig
from atom_kernels.attention.triton.decode import decode_kernel, merge_kernel
from atom_kernels.attention.triton.prefill import prefill_kernel
from atom_kernels.attention.triton.shares import DecodeShares, share_decodes
from atom_kernels.attention.triton.tile import SCALED_BY_HEAD, SCALED_BY_TOKEN, UNSCALED
from atom_kernels.attention.triton.words import WEIGHT_UNIT
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch
from atom_kernels.triton.support import dependent_launch

if TYPE_CHECKING:
    from atom_kernels.protocols import BatchGeometry

# Prompts looked at together in search of a tile's. A constant: Triton would compile for each number of prompts.
_REQUESTS_AT_ONCE = 256
_LOG2_E = 1.4426950408889634
# Elements of all pieces' rows that a program merges at a time: after decoding, which has left its registers, all pieces
# of a request that has the GPU to itself; in a kernel of its own fewer, so that its programs fit beside others.
_MERGED_AFTER_DECODING = 16384
_MERGED_APART = 8192
# Elements of a piece up to which the program that stores the last piece merges all.
_MAX_PIECE_ELEMENTS = 4096
_RULES_OF_MERGING = ("NUM_HEADS", "GROUP", "HEAD_DIM", "BLOCK_D", "SCALES", "SCALE_HEAD_STRIDE", "UNIT")
# As `atom_kernels.attention.triton.tile` has them.
_UNSCALED, _BY_HEAD, _BY_TOKEN = UNSCALED.value, SCALED_BY_HEAD.value, SCALED_BY_TOKEN.value

Scales = tuple[torch.Tensor, torch.Tensor]
"""Those of keys and of values: ``[K]`` of heads, or of tokens ``[num_blocks, block_size, K]``, where K of 1 may be
left out; float32."""


@dataclass(frozen=True)
class ScaleStrides:
    """Where the scales of an fp8 cache are: elements from a block, a token and a head to the next."""

    scales: int = _UNSCALED
    block: int = 0
    token: int = 0
    head: int = 0


def scale_strides(scales: Scales | None, cache: torch.Tensor) -> ScaleStrides:
    """`cache`: ``[num_blocks, ...]``, the numbers that they scale."""
    if scales is None:
        return ScaleStrides()
    if scales[0].dim() == 1:
        return ScaleStrides(_BY_HEAD, head=scales[0].stride(0))
    block, token, head = (*scales[0].stride(), 0)[:3]
    return ScaleStrides(_BY_TOKEN, block if cache.shape[0] > 1 else 0, token, head)


@dataclass(frozen=True)
class TritonMetadata:
    """One step.

    Attributes:
        step: dense; its numbers are the sizes of the launches, all known on the host.
        shares: who reads which keys of its decodes, None where there are none.
        counter: int32 ``[1]``, zero between kernels, where Hopper's own kernel may attend to the prompts; else None.
    """

    step: BatchGeometry
    shares: DecodeShares | None
    counter: torch.Tensor | None


@dataclass(frozen=True)
class PagedKernels:
    """Attention of one layer, written once for keys and values apart and for latents, which are both.

    Attributes:
        num_heads: query heads; `group` of them are in one program.
        head_dim: elements of a value, and of the first part of a key.
        rope_dim: elements of a key that lie behind its first part, 0 for none.
        latent: values are the first parts of keys.
        block_size: tokens of a cache block.
        window: tokens visible to a query, 0 for all.
        scale, soft_cap: what is done to scores, see `AttentionProblem`.
        dtype: the dtype of queries and outputs.
        batch_invariant: see `AttentionProblem`.
        in_words: decodes read two codes of a cache in float8 at a time, see `words`.
        hopper: how Hopper's own kernel attends to long prompts, None where it cannot.
    """

    num_heads: int
    group: int
    head_dim: int
    block_size: int
    scale: float
    dtype: torch.dtype
    decode: DecodeConfig
    prefill: PrefillConfig
    rope_dim: int = 0
    latent: bool = False
    window: int = 0
    soft_cap: float | None = None
    batch_invariant: bool = False
    in_words: bool = False
    hopper: HopperConfig | None = None

    def build_metadata(self, geometry: BatchGeometry) -> TritonMetadata:
        step = geometry.dense()
        # Hopper's own kernel is written for tokens that see nothing behind them.
        hopper = self.hopper if step.sees_until is None else None
        served = hopper is not None and hopper.serves(step.num_reqs - step.num_decodes, step.num_tokens)
        shares = share_decodes(self, step) if step.num_decodes else None
        return TritonMetadata(step, shares, step.query_start_loc.new_zeros(1) if served else None)

    def attend(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out_THD: torch.Tensor,
        metadata: TritonMetadata,
        sinks: torch.Tensor | None = None,
        scales: Scales | None = None,
        lse_TH: torch.Tensor | None = None,
    ) -> None:
        """Fill `out_THD` for every token of the step.

        Args:
            q: ``[T, H, D + E]``.
            k_cache: ``[num_blocks, block_size, K, D + E]``; for latents K is 1 and serves every group.
            v_cache: ``[num_blocks, block_size, K, D]``, of the same strides.
            out_THD: contiguous.
            scales: what cached numbers are multiplied by, None for 1.
            lse_TH: float32, contiguous; filled with the log-sum-exp of each query's scores, without sinks.
        """
        rules = self._rules | {
            # The stride of a cache of one block means nothing, and may change from step to step.
            "BLOCK_STRIDE": k_cache.stride(0) if k_cache.shape[0] > 1 else 0,
            "TOKEN_STRIDE": k_cache.stride(1),
            "HEAD_STRIDE": 0 if self.latent else k_cache.stride(2),
            **self._scale_rules(scales, k_cache),
        }
        tensors = (q, k_cache, v_cache, *(scales or (None, None)), sinks, out_THD, lse_TH)
        if metadata.shares is not None:
            self._decode(tensors, rules, metadata, metadata.shares)
        if metadata.step.num_reqs > metadata.step.num_decodes:
            self._prefill(tensors, rules, metadata)

    @property
    def num_groups(self) -> int:
        """Programs for each range or tile of keys."""
        return self.num_heads // self.group

    @property
    def _factors(self) -> tuple[float, float]:
        """The factors of a score before and after its soft cap; then it is in base 2."""
        if self.soft_cap is None:
            return self.scale * _LOG2_E, 1.0
        return self.scale / self.soft_cap, self.soft_cap * _LOG2_E

    @property
    def _rules(self) -> dict[str, Any]:
        return {
            "NUM_HEADS": self.num_heads,
            "GROUP": self.group,
            "HEAD_DIM": self.head_dim,
            "ROPE_DIM": self.rope_dim,
            "LATENT": self.latent,
            "BLOCK_SIZE": self.block_size,
            "WINDOW": self.window,
            "SOFT_CAP": self.soft_cap is not None,
            # Exact products in float32, as the contract's; other dtypes have one kind.
            "PRECISION": "ieee",
            # The interpreter multiplies float32 matrices only.
            "UPCAST": triton_interpret() and self.dtype is not torch.float32,
            "BLOCK_D": max(16, power_of_two(self.head_dim)),
            "BLOCK_E": max(16, power_of_two(max(self.rope_dim, 1))),
        }

    def _scale_rules(self, scales: Scales | None, cache: torch.Tensor) -> dict[str, Any]:
        strides, unit = scale_strides(scales, cache), 1.0
        if strides.scales == _BY_TOKEN:
            unit = torch.finfo(cache.dtype).max
        return {
            "SCALES": strides.scales,
            "SCALE_BLOCK_STRIDE": strides.block,
            "SCALE_TOKEN_STRIDE": strides.token,
            "SCALE_HEAD_STRIDE": 0 if self.latent else strides.head,
            "UNIT": unit,
        }

    def _decode(
        self,
        tensors: tuple[Any, ...],
        rules: dict[str, Any],
        metadata: TritonMetadata,
        shares: DecodeShares,
    ) -> None:
        step, block_d = metadata.step, max(16, power_of_two(self.head_dim))
        if self.in_words:
            tensors = (tensors[0], *(cache.view(torch.int16) for cache in tensors[1:3]), *tensors[3:])
            strides = {name: rules[name] // 2 for name in ("BLOCK_STRIDE", "TOKEN_STRIDE", "HEAD_STRIDE")}
            rules = rules | strides | {"UNIT": WEIGHT_UNIT}
        merge = shares.rows * block_d <= _MAX_PIECE_ELEMENTS
        elements, rows_merged = (_MERGED_AFTER_DECODING, shares.rows) if merge else (_MERGED_APART, 1)
        merging = {"BLOCK_P": shares.rows, "BLOCK_C": max(1, elements // (block_d * rows_merged))}
        launch(
            decode_kernel, (self.num_groups, shares.num_ranges),
            *tensors, step.query_start_loc, step.seq_lens, step.block_table,
            shares.ranges, shares.requests, shares.arrivals, shares.sums, shares.stats,
            *self._factors, tensors[0].stride(0), step.block_table.stride(0), step.block_table.shape[1],
            **rules,
            **merging,
            BLOCK_M=max(16, shares.rows),
            BLOCK_N=self.decode.block_n,
            # A product has at least 16 columns.
            PARTS=2 if self.in_words else min(self.decode.parts, block_d // 16),
            MERGE=merge,
            PREFETCH=self.decode.prefetch,
            num_warps=self.decode.num_warps,
            num_stages=self.decode.num_stages,
            **dependent_launch(),
        )  # fmt: skip
        if not merge:
            *_, key_scale, value_scale, sinks, out_THD, lse_TH = tensors
            # As many pieces as requests of equal length have: programs of few registers fit beside those that decode.
            pieces = power_of_two(max(shares.num_ranges // step.num_decodes, 2))
            merging["BLOCK_C"] = min(merging["BLOCK_C"], pieces)
            launch(
                merge_kernel, (shares.rows, self.num_groups, step.num_decodes),
                shares.sums, shares.stats, key_scale, value_scale, sinks, out_THD, lse_TH,
                step.query_start_loc, shares.requests,
                **{name: rules[name] for name in _RULES_OF_MERGING},
                **merging,
                num_warps=4,
                **dependent_launch(),
            )  # fmt: skip

    def _prefill(self, tensors: tuple[Any, ...], rules: dict[str, Any], metadata: TritonMetadata) -> None:
        step, first = metadata.step, metadata.step.num_decodes
        prompts = (step.query_start_loc[first:], step.seq_lens[first : step.num_reqs], step.block_table[first:])
        if self.hopper is not None and metadata.counter is not None and tensors[-1] is None:
            # Gluon is imported where it is used, and only there.
            from atom_kernels.attention.hopper.launch import launch_prefill, rows_of_both

            rows = rows_of_both(*tensors[:3])
            if rows is not None:
                head_bytes = 2 * step.max_seq_len * self.head_dim * self.dtype.itemsize
                launch_prefill(
                    (*tensors[:3], *tensors[5:7]), rows, prompts, metadata.counter, self.hopper,
                    num_tokens=step.num_tokens,
                    band=heads_at_a_time(self.num_groups, head_bytes),
                    scale=self._factors[0],
                )  # fmt: skip
                return
        block_m = max(self.prefill.block_m, power_of_two(self.group))
        block_t = block_m // self.group
        # Decodes may be padding without a token: then all tokens are of prompts.
        num_prompts = step.num_reqs - first
        tiles = step.num_tokens // block_t + num_prompts
        launch(
            prefill_kernel, (self.num_groups, tiles),
            *tensors, *prompts, step.sees_until,
            *self._factors, tensors[0].stride(0), step.block_table.stride(0), step.block_table.shape[1],
            num_prompts,
            **rules,
            BLOCK_R=_REQUESTS_AT_ONCE,
            BLOCK_T=block_t,
            BLOCK_M=block_m,
            BLOCK_N=self.prefill.block_n,
            # There are rows enough to fill the time.
            PARTS=1,
            num_warps=self.prefill.num_warps,
            num_stages=self.prefill.num_stages,
        )  # fmt: skip
