"""What comes before latent attention on AITER: the norm of latents, rotation, and the write into the cache.

Shapes: T tokens, H heads, C kv_lora_rank, E qk_rope_head_dim, L = C + E.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.head_steps import HeadSteps
from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import rotary_halves, unit_scale

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaPrologue


class LatentPrologue:
    """See the module's docstring. `rank` is C; latents `is_float8` are cached over their scale."""

    def __init__(self, rank: int, *, is_float8: bool) -> None:
        self._rank, self._is_float8 = rank, is_float8
        self._heads = HeadSteps()

    def normed(self, kv_TL: torch.Tensor, prologue: MlaPrologue | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents ``[T, C]``, normed, and keys ``[T, E]`` that are still to be rotated."""
        latent_TC, key_TE = kv_TL[:, : self._rank], kv_TL[:, self._rank :]
        if prologue is not None and prologue.norm_weight is not None:
            latent_TC = self._heads.norm(latent_TC, prologue.norm_weight, prologue.norm_eps)
        return latent_TC, key_TE

    def place(
        self,
        query_THC: torch.Tensor,
        turning_THE: torch.Tensor,
        latent_TC: torch.Tensor,
        key_TE: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
        prologue: MlaPrologue | None,
        out_THL: torch.Tensor,
        scale: torch.Tensor,
    ) -> None:
        """Absorbed queries with their rotated parts behind them to `out_THL`; latents and rotated keys to their slots.

        Args:
            query_THC, turning_THE: the two parts of queries, the second not rotated yet.
            latent_TC, key_TE: what `normed` gave.
            cache: ``[num_blocks, block_size, L]``.
            slots: int64 ``[T]``, -1 to write nothing.
            scale: float32 ``[1]``, of cached latents in float8.
        """
        if prologue is None or prologue.cos_sin_cache is None:
            out_THL[..., : self._rank] = query_THC
            out_THL[..., self._rank :] = turning_THE
            self.store(latent_TC, key_TE, cache, slots, scale)
            return
        is_neox, positions = not prologue.interleaved, prologue.positions.contiguous()
        cos, sin = rotary_halves(prologue.cos_sin_cache, query_THC.dtype)
        if self._writes_every_query:
            self._fused(
                query_THC, turning_THE, latent_TC, key_TE, cache, out_THL, slots, scale, unit_scale(cache.device),
                positions, cos, sin, is_neox,
            )  # fmt: skip
        else:
            rows, latents, keys = cache.view(-1, 1, cache.shape[-1]), latent_TC[:, None], key_TE[:, None]
            key_scale = scale if self._is_float8 else None
            self._triton(
                query_THC, turning_THE, latents, keys, rows, slots, positions, cos, sin, key_scale, is_neox, out_THL
            )

    def rotated(
        self, turning_THE: torch.Tensor, key_TE: torch.Tensor, prologue: MlaPrologue | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both rotated, apart from everything else."""
        if prologue is None or prologue.cos_sin_cache is None:
            return turning_THE, key_TE
        turned_THE, key_T1E = self._heads.rotate(
            turning_THE,
            key_TE[:, None],
            prologue.positions.contiguous(),
            prologue.cos_sin_cache,
            prologue.interleaved,
        )
        return turned_THE, key_T1E.squeeze(1)

    def store(
        self,
        latent_TC: torch.Tensor,
        key_TE: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
        scale: torch.Tensor,
    ) -> None:
        """Latents and keys to their slots."""
        self._concat(latent_TC, key_TE, cache, slots, scale)

    @cached_property
    def _writes_every_query(self) -> bool:
        """Before v0.1.20 the fused kernel left out the queries of tokens that are not written."""
        return library().has("fused_qk_rope_concat_and_cache_mla", "compute_all_q_rope")

    @cached_property
    def _fused(self) -> Any:
        return library().bind(
            "fused_qk_rope_concat_and_cache_mla",
            "q_nope", "q_pe", "kv_c", "k_pe", "kv_cache", "q_out", "slot_mapping", "k_scale", "q_scale", "positions",
            "cos_cache", "sin_cache", "is_neox",
            is_nope_first=True,
            compute_all_q_rope=True,
        )  # fmt: skip

    @cached_property
    def _triton(self) -> Any:
        return library().bind(
            "fused_qk_rope_cat_and_cache_mla",
            "q_nope", "q_pe", "k_nope", "k_pe", "kv_cache", "slot_mapping", "pos", "cos", "sin", "k_scale", "is_neox",
            "q_out",
        )  # fmt: skip

    @cached_property
    def _concat(self) -> Any:
        stored_as = "fp8" if self._is_float8 else "auto"
        return library().bind(
            "concat_and_cache_mla", "kv_c", "k_pe", "kv_cache", "slot_mapping", "scale", kv_cache_dtype=stored_as
        )
