"""Latent attention by Triton: queries take up what makes keys of latents, and look at the cached latents themselves.

The kernels are those of ordinary attention with one key head, whose values are the first parts of its keys.

Shapes: T tokens, H heads, N qk_nope_head_dim, E qk_rope_head_dim, V v_head_dim, C kv_lora_rank, L latent_dim C + E.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla.torch_backend import TorchMlaWeights, split_kv_b
from atom_kernels.attention.triton_backend import FLOAT8, why_not_dtypes
from atom_kernels.attention.triton_configs import latent_decode_config, latent_prefill_config, next_power_of_two

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.attention.triton_launch import TritonMetadata
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry

NAME = "triton"
_MAX_RANK = 512
# Heads of one program: their sums over latents fill its registers.
_MAX_GROUP = 32


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    reason = why_not_dtypes(problem.dtype, problem.cache_dtype, platform)
    if reason is None and problem.kv_lora_rank > _MAX_RANK:
        reason = f"written for kv_lora_rank up to {_MAX_RANK}, not {problem.kv_lora_rank}"
    return reason


class TritonMla:
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: MlaProblem) -> None:
        from atom_kernels.attention.mla.triton_prologue import latent_prologue_kernel
        from atom_kernels.attention.triton_launch import PagedKernels

        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)
        self._prologue_kernel = latent_prologue_kernel
        self._kernels = PagedKernels(
            num_heads=problem.num_heads,
            group=max(size for size in range(1, _MAX_GROUP + 1) if problem.num_heads % size == 0),
            head_dim=problem.kv_lora_rank,
            rope_dim=problem.qk_rope_head_dim,
            latent=True,
            block_size=problem.block_size,
            scale=problem.scale,
            dtype=self._dtype,
            decode=latent_decode_config(problem),
            prefill=latent_prefill_config(problem),
        )

    def prepare(self, kv_b_weight: torch.Tensor) -> TorchMlaWeights:
        return split_kv_b(self.problem, kv_b_weight)

    def build_metadata(self, geometry: BatchGeometry) -> TritonMetadata:
        return self._kernels.build_metadata(geometry)

    def forward(
        self,
        q_THD: torch.Tensor,
        kv_TL: torch.Tensor,
        weights: TorchMlaWeights,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: TritonMetadata,
        *,
        prologue: MlaPrologue | None = None,
    ) -> torch.Tensor:
        problem, rows = self.problem, slice(0, metadata.num_tokens)
        if not q_THD.dtype is kv_TL.dtype is self._dtype:
            raise TypeError(f"latent attention was planned for {self._dtype}, got {q_THD.dtype} and {kv_TL.dtype}")
        if q_THD.stride()[1:] != (problem.query_dim, 1):
            q_THD = q_THD.contiguous()
        out_THV = q_THD.new_empty((*q_THD.shape[:2], problem.v_head_dim))
        out_THV[metadata.num_tokens :].zero_()
        if not metadata.num_tokens:
            return out_THV
        (cache,) = kv_cache
        query_THL = self._write_cache(q_THD[rows], kv_TL[rows], cache, metadata, prologue)
        nope_HTN = q_THD[rows, :, : problem.qk_nope_head_dim].transpose(0, 1)
        torch.bmm(nope_HTN, weights.key, out=query_THL[..., : problem.kv_lora_rank].transpose(0, 1))
        found_THC = query_THL.new_empty((*query_THL.shape[:2], problem.kv_lora_rank))
        latents = cache.unsqueeze(2)
        self._kernels.attend(query_THL, latents, latents, found_THC, metadata)
        torch.bmm(found_THC.transpose(0, 1), weights.value.transpose(1, 2), out=out_THV[rows].transpose(0, 1))
        return out_THV

    def _write_cache(
        self,
        q_THD: torch.Tensor,
        kv_TL: torch.Tensor,
        cache: torch.Tensor,
        metadata: TritonMetadata,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        """Latents to their slots; ``[T, H, L]`` with the rotated parts of queries in their places."""
        problem = self.problem
        positions = cos_sin = norm = None
        if prologue is not None:
            positions, cos_sin, norm = prologue.positions, prologue.cos_sin_cache, prologue.norm_weight
        query_THL = q_THD.new_empty((*q_THD.shape[:2], problem.latent_dim))
        block_e = next_power_of_two(problem.qk_rope_head_dim)
        block_h = min(next_power_of_two(problem.num_heads), max(1, 1024 // block_e))
        self._prologue_kernel[(q_THD.shape[0], -(-problem.num_heads // block_h) + 1)](
            q_THD, kv_TL, query_THL, cache, metadata.slot_mapping, positions, cos_sin, norm,
            1e-6 if prologue is None else prologue.norm_eps,
            q_THD.stride(0), kv_TL.stride(0), cache.stride(0), cache.stride(1),
            NUM_HEADS=problem.num_heads,
            RANK=problem.kv_lora_rank,
            NOPE_DIM=problem.qk_nope_head_dim,
            ROPE_DIM=problem.qk_rope_head_dim,
            ROTATE=cos_sin is not None,
            INTERLEAVED=prologue is not None and prologue.interleaved,
            BLOCK_SIZE=problem.block_size,
            SATURATE=problem.cache_dtype == FLOAT8,
            BLOCK_H=block_h,
            BLOCK_C=next_power_of_two(problem.kv_lora_rank),
            BLOCK_E=block_e,
            num_warps=4,
        )  # fmt: skip
        return query_THL


create = TritonMla
