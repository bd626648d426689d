"""Attention by AITER: over shuffled blocks by its assembly where that has a kernel, else over NHD blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.aiter.attention.layouts import from_nhd, restore_nhd, scaled_layout, shuffled_layout
from atom_kernels.aiter.attention.limits import why_not_any, why_not_assembly, why_not_unified
from atom_kernels.mixers.backend import CacheConversion, MixerBackend
from atom_kernels.mixers.cache_format import NO_SCALES, TOKEN_SCALES
from atom_kernels.powers_of_two import is_power_of_two

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem
    from atom_kernels.mixers.backend import MixerRunner
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import CacheLayout

NAME = "aiter"
# Kernels by the layout that they read; blocks of other strides count as NHD.
_NHD = ("unified_attention", "flash_attn_varlen_func")
KERNELS = {
    "shuffled": ("pa_fwd_asm", "mha_batch_prefill_func"),
    "shuffled_scaled": ("pa_fwd_asm", "flash_attn_varlen_func"),
    "nhd": _NHD,
    "packed_hnd": _NHD,
}
SHUFFLED = ("shuffled", "shuffled_scaled")


def supports(problem: AttentionProblem, platform: Platform) -> str | None:
    reason = why_not_any(problem, platform)
    if reason is not None:
        return reason
    assembly, unified = why_not_assembly(problem, platform), why_not_unified(problem, platform)
    return f"{assembly}; {unified}" if assembly and unified else None


def layouts(problem: AttentionProblem, platform: Platform) -> tuple[CacheLayout, ...]:
    """What it reads, best first."""
    layout_of = shuffled_layout if problem.kv_cache_dtype == problem.dtype else scaled_layout
    shuffled = (layout_of(problem),) if why_not_assembly(problem, platform) is None else ()
    nhd = (problem.layout,) if why_not_unified(problem, platform) is None else ()
    return shuffled + nhd


def passed_over(problem: AttentionProblem, platform: Platform, layout: CacheLayout) -> tuple[tuple[str, str], ...]:
    """Why the assembly is not taken, where another kernel is."""
    if layout.name in SHUFFLED:
        return ()
    reason = why_not_assembly(problem, platform) or f"the host wants {layout.name} blocks"
    return ((f"{NAME} pa_fwd_asm", reason),)


def why_not_strided(problem: AttentionProblem, platform: Platform) -> str | None:
    """The one kernel that writes into blocks of any strides has limits of its own."""
    reason = why_not_unified(problem, platform)
    if reason is None and not is_power_of_two(problem.head_dim):
        reason = f"writes blocks of other strides for head_dim of powers of two, not {problem.head_dim}"
    if reason is None and problem.kv_cache_dtype == "float16":
        reason = "writes blocks of other strides in bfloat16 and float8, not in float16"
    return reason


def create(problem: AttentionProblem, layout: CacheLayout) -> MixerRunner:
    """AITER is imported when a kernel is first called, not here."""
    if layout.name in SHUFFLED:
        from atom_kernels.aiter.attention.shuffled import AiterShuffledAttention

        return AiterShuffledAttention(problem, layout)
    from atom_kernels.aiter.attention.unified import AiterUnifiedAttention

    return AiterUnifiedAttention(problem, layout)


BACKEND = MixerBackend(
    name=NAME,
    supports=supports,
    create=create,
    layouts=layouts,
    why_not_strided=why_not_strided,
    passed_over=passed_over,
    kernels=KERNELS,
    conversion=CacheConversion(from_nhd, restore_nhd),
    cache_scales=(NO_SCALES, TOKEN_SCALES),
)
