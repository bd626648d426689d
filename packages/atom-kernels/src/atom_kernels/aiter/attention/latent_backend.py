"""Latent attention by AITER: decodes absorbed and persistent, prompts absorbed, a prompt alone expanded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.aiter.api import api_of
from atom_kernels.mixers.backend import HeldByMixer, MixerBackend
from atom_kernels.mixers.cache_format import HEAD_SCALES, NO_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.mixers.backend import MixerRunner
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import CacheLayout

KERNELS = {"latent": ("mla_decode_fwd", "mla_prefill_fwd", "flash_attn_varlen_func")}
_RANK, _ROPE = 512, 64
_MAX_HEADS = 128
_MAX_HEADS_PYPI = 112
_NEEDED = (
    "mla_decode_fwd mla_prefill_fwd get_mla_metadata_info_v1 get_mla_metadata_v1 batched_gemm_bf16_CK "
    "concat_and_cache_mla fused_qk_rope_cat_and_cache_mla flash_attn_varlen_func"
)


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    if problem.dtype != "bfloat16":
        return f"its kernels of latent attention compute in bfloat16, not in {problem.dtype}"
    if problem.kv_cache_dtype not in ("bfloat16", platform.float8):
        known = f"in bfloat16, or in {platform.float8} on {platform.arch}"
        return f"mla_decode_fwd reads latents {known}, not in {problem.kv_cache_dtype}"
    if (problem.kv_lora_rank, problem.qk_rope_head_dim) != (_RANK, _ROPE):
        given = f"{problem.kv_lora_rank} + {problem.qk_rope_head_dim}"
        return f"mla_decode_fwd is written for latents of {_RANK} + {_ROPE} elements, not {given}"
    if problem.num_heads > _MAX_HEADS:
        return f"mla_decode_fwd takes up to {_MAX_HEADS} heads, not {problem.num_heads}"
    if platform.batch_invariant:
        return "shares work out by the batch, so a row's bits depend on the others"
    api = api_of(platform)
    if api.release == "pypi" and problem.num_heads > _MAX_HEADS_PYPI:
        # Its decode computes 128 heads 16 at a time, and its metadata is for 128 at once.
        return f"mla_decode_fwd of amd-aiter {api.version} takes up to {_MAX_HEADS_PYPI} heads, not {problem.num_heads}"
    return next((reason for name in _NEEDED.split() if (reason := api.why_not(name))), None)


def create(problem: MlaProblem, layout: CacheLayout) -> MixerRunner:
    """AITER is imported when a kernel is first called, not here."""
    from atom_kernels.aiter.attention.latent import AiterMla

    return AiterMla(problem)


def _passed_over(problem: MlaProblem, platform: Platform, layout: CacheLayout) -> tuple[tuple[str, str], ...]:
    from atom_kernels.aiter.latent_products import latent_products

    return latent_products(problem, platform).reasons


def _holds(problem: MlaProblem, platform: Platform) -> HeldByMixer:
    """kv_b as it is loaded, for prompts, and both halves of it by head."""
    from atom_kernels.aiter.latent_products import latent_products

    products = latent_products(problem, platform)
    row = products.keys.rows[0]
    layouts = ("source", row.layout.name)
    return HeldByMixer(products.num_bytes, (f"{row.backend} ({row.implementation})",), layouts, products.note)


BACKEND = MixerBackend(
    name="aiter",
    supports=supports,
    create=create,
    passed_over=_passed_over,
    kernels=KERNELS,
    cache_scales=(NO_SCALES, HEAD_SCALES),
    holds=_holds,
)
