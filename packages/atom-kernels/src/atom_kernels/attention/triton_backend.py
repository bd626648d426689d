"""Attention by Triton: one launch writes the cache, then decodes and chunks of prompts take a launch each.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.triton_configs import next_power_of_two, prefill_config
from atom_kernels.settings import triton_interpret

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.attention.triton_shares import DecodeShares
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout

NAME = "triton"
READS_STRIDES = True
_DTYPES = ("float32", "bfloat16", "float16")
_FLOAT8 = "float8_e4m3fn"
_MAX_HEAD_DIM = 256
_MAX_REQUESTS = 8192
_LOG2_E = 1.4426950408889634


def supports(problem: AttentionProblem, platform: Platform) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"computes in {', '.join(_DTYPES)}, not in {problem.dtype}"
    if problem.cache_dtype not in (problem.dtype, _FLOAT8):
        return f"reads a cache of {problem.dtype} or {_FLOAT8}, not of {problem.cache_dtype}"
    if problem.cache_dtype == _FLOAT8 and not _has_float8(platform):
        return f"{_FLOAT8} needs an NVIDIA GPU of sm_89 or later, this is {platform.arch}"
    if problem.head_dim > _MAX_HEAD_DIM:
        return f"written for head_dim up to {_MAX_HEAD_DIM}, not {problem.head_dim}"
    return None


def _has_float8(platform: Platform) -> bool:
    return platform.vendor == "cpu" or (platform.vendor == "nvidia" and int(platform.arch.removeprefix("sm_")) >= 89)


@dataclass(frozen=True)
class TritonMetadata:
    """One step: device tensors as the geometry has them, and the sizes of the launches, all known on the host."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_tokens: int
    num_decodes: int
    num_prefills: int
    prefill_tokens: int
    shares: DecodeShares | None


class TritonAttention:
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.attention.triton_decode import decode_kernel
        from atom_kernels.attention.triton_prefill import prefill_kernel
        from atom_kernels.attention.triton_prologue import prologue_kernel
        from atom_kernels.attention.triton_shares import DecodeSharing

        self.problem = problem
        self.layout = layout
        self._dtype = getattr(torch, problem.dtype)
        self._prologue_kernel, self._decode_kernel, self._prefill_kernel = (
            prologue_kernel,
            decode_kernel,
            prefill_kernel,
        )
        self._sharing = DecodeSharing.of_attention(problem)
        self._prefill_config = prefill_config(problem)
        self._block_d = max(16, next_power_of_two(problem.head_dim))
        self._shape = {"NUM_HEADS": problem.num_heads, "HEAD_DIM": problem.head_dim, "BLOCK_D": self._block_d}
        self._rules = {
            "GROUP": problem.group_size,
            "BLOCK_SIZE": layout.block_size,
            "WINDOW": problem.sliding_window or 0,
            "SOFT_CAP": problem.soft_cap is not None,
            # Exact products in float32, as the contract's; other dtypes have one kind.
            "PRECISION": "ieee",
            # The interpreter multiplies float32 matrices only.
            "UPCAST": triton_interpret() and self._dtype is not torch.float32,
        }
        # Factors of a score before and after its soft cap; after the last one it is in base 2.
        cap = problem.soft_cap
        self._scale = problem.scale * _LOG2_E if cap is None else problem.scale / cap
        self._cap = 1.0 if cap is None else cap * _LOG2_E

    def build_metadata(self, geometry: BatchGeometry) -> TritonMetadata:
        # Converting copies only what has another dtype or stride than the contract says.
        query_start_loc = geometry.query_start_loc.to(torch.int32).contiguous()
        seq_lens = geometry.seq_lens.to(torch.int32).contiguous()
        block_table = geometry.block_table.to(torch.int32)
        if block_table.stride(1) != 1:
            block_table = block_table.contiguous()
        num_decodes = min(geometry.num_decodes, geometry.num_reqs)
        num_prefills = geometry.num_reqs - num_decodes
        if num_prefills > _MAX_REQUESTS:
            raise ValueError(f"a step may have up to {_MAX_REQUESTS} prompts, got {num_prefills}")
        shares = None
        if num_decodes:
            shares = self._sharing.share(query_start_loc, seq_lens, num_decodes, geometry.max_decode_len)
        return TritonMetadata(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=block_table,
            slot_mapping=geometry.slot_mapping.to(torch.int64).contiguous(),
            num_tokens=min(geometry.num_tokens, geometry.slot_mapping.shape[0]),
            num_decodes=num_decodes,
            num_prefills=num_prefills,
            # Decodes have at least one token each.
            prefill_tokens=geometry.num_tokens - num_decodes,
            shares=shares,
        )

    def forward(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: TritonMetadata,
        *,
        prologue: AttentionPrologue | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if q_THD.dtype is not self._dtype:
            raise TypeError(f"attention was planned for {self._dtype}, got {q_THD.dtype}")
        rows = (self.problem.head_dim, 1)
        q_THD, k_TKD, v_TKD = (x if x.stride()[1:] == rows else x.contiguous() for x in (q_THD, k_TKD, v_TKD))
        out_THD = q_THD.new_empty(q_THD.shape)
        if q_THD.shape[0] > metadata.num_tokens:
            out_THD[metadata.num_tokens :].zero_()
        if not metadata.num_tokens:
            return out_THD
        q_THD = self._write_cache(q_THD, k_TKD, v_TKD, kv_cache, metadata, prologue)
        if metadata.shares is not None:
            self._decode(q_THD, kv_cache, out_THD, metadata, metadata.shares, sinks)
        if metadata.num_prefills:
            self._prefill(q_THD, kv_cache, out_THD, metadata, sinks)
        return out_THD

    def _write_cache(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: TritonMetadata,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        """Keys and values to their slots; the queries that attention uses."""
        problem = self.problem
        positions = cos_sin = q_norm = k_norm = None
        if prologue is not None:
            positions, cos_sin = prologue.positions, prologue.cos_sin_cache
            q_norm, k_norm = prologue.q_norm_weight, prologue.k_norm_weight
        write_q = cos_sin is not None or q_norm is not None
        q_out = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device) if write_q else q_THD
        block_h = min(next_power_of_two(max(problem.num_heads, problem.num_kv_heads)), max(1, 1024 // self._block_d))
        parts = -(-problem.num_kv_heads // block_h) + (-(-problem.num_heads // block_h) if write_q else 0)
        self._prologue_kernel[(metadata.num_tokens, parts)](
            q_THD, k_TKD, v_TKD, q_out, *kv_cache, metadata.slot_mapping, positions, cos_sin, q_norm, k_norm,
            1e-6 if prologue is None else prologue.norm_eps,
            q_THD.stride(0), k_TKD.stride(0), v_TKD.stride(0), *kv_cache[0].stride()[:3],
            **self._shape,
            NUM_KV_HEADS=problem.num_kv_heads,
            ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1],
            BLOCK_SIZE=self.layout.block_size,
            INTERLEAVED=prologue is not None and prologue.interleaved,
            WRITE_Q=write_q,
            SATURATE=problem.cache_dtype == _FLOAT8,
            BLOCK_H=block_h,
            num_warps=4 if block_h * self._block_d >= 1024 else 2,
        )  # fmt: skip
        return q_out

    def _decode(
        self,
        q_THD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        out_THD: torch.Tensor,
        metadata: TritonMetadata,
        shares: DecodeShares,
        sinks: torch.Tensor | None,
    ) -> None:
        config = self._sharing.config
        self._decode_kernel[(self.problem.num_kv_heads, shares.num_ranges)](
            q_THD, *kv_cache, sinks, out_THD, metadata.query_start_loc, metadata.seq_lens, metadata.block_table,
            shares.ranges, shares.requests, shares.arrivals, shares.sums, shares.stats,
            self._scale, self._cap, q_THD.stride(0), *kv_cache[0].stride()[:3], metadata.block_table.stride(0),
            **self._shape, **self._rules,
            BLOCK_M=max(16, shares.rows),
            BLOCK_N=config.block_n,
            BLOCK_P=shares.rows,
            BLOCK_C=max(1, 8192 // (self._block_d * shares.rows)),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip

    def _prefill(
        self,
        q_THD: torch.Tensor,
        kv_cache: tuple[torch.Tensor, ...],
        out_THD: torch.Tensor,
        metadata: TritonMetadata,
        sinks: torch.Tensor | None,
    ) -> None:
        first, config = metadata.num_decodes, self._prefill_config
        tiles = metadata.prefill_tokens // config.block_m + metadata.num_prefills
        self._prefill_kernel[(self.problem.num_heads, tiles)](
            q_THD, *kv_cache, sinks, out_THD, metadata.query_start_loc[first:], metadata.seq_lens[first:],
            metadata.block_table[first:], self._scale, self._cap, q_THD.stride(0),
            *kv_cache[0].stride()[:3], metadata.block_table.stride(0), metadata.num_prefills,
            **self._shape, **self._rules,
            BLOCK_R=max(16, next_power_of_two(metadata.num_prefills)),
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip


create = TritonAttention
