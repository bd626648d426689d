"""What AITER's attention kernels can do, as their sources say: each function gives a reason why not, or None.

The assembly kernels are picked by a table of AITER's (`hsa/<arch>/pa/pa_asm.csv`), which these numbers come from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.attention.layouts import why_not_shuffled
from atom_kernels.mixers.cache_format import TOKEN_SCALES
from atom_kernels.powers_of_two import is_power_of_two

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem
    from atom_kernels.platform import Platform

DTYPES = ("bfloat16", "float16")
ASSEMBLY_HEAD_DIM = 128
ASSEMBLY_BLOCK = 16
# Query heads of one key head, and the largest group that also takes several queries of a request.
ASSEMBLY_GROUP = 16
ASSEMBLY_QUERY_GROUP = 8
# Queries of a request times query heads of a key head.
ASSEMBLY_ROWS = 16
UNIFIED_HEAD_DIM = 256
UNIFIED_BLOCK = 16


def why_not_any(problem: AttentionProblem, platform: Platform) -> str | None:
    """Reasons that hold for every kernel."""
    if problem.sees_ahead:
        return "written for tokens that see nothing behind them, and those of pictures see all of theirs"
    if problem.dtype not in DTYPES:
        return f"computes in {' and '.join(DTYPES)}, not in {problem.dtype}"
    if problem.kv_cache_dtype not in (problem.dtype, platform.float8):
        return (
            f"reads a cache of {problem.dtype}, or of {platform.float8} on {platform.arch}, not of "
            f"{problem.kv_cache_dtype}"
        )
    if problem.batch_invariant or platform.batch_invariant:
        return "shares work out by the batch, so a row's bits depend on the others"
    return None


def why_not_assembly(problem: AttentionProblem, platform: Platform) -> str | None:
    """Decodes by `pa_fwd_asm`, over shuffled blocks that something else must be able to read for prompts."""
    api = api_of(platform)
    reason = _why_not_decoded(problem) or why_not_shuffled(problem) or api.why_not("pa_fwd_asm")
    if reason is not None:
        return reason
    if problem.kv_cache_dtype != problem.dtype:
        return api.why_not("reshape_and_cache_with_pertoken_quant") or api.why_not("flash_attn_varlen_func")
    return api.why_not("mha_batch_prefill_func", "kv_last_page_lens") or api.why_not("reshape_and_cache")


def _why_not_decoded(problem: AttentionProblem) -> str | None:
    if problem.head_dim != ASSEMBLY_HEAD_DIM:
        return f"pa_fwd_asm is written for head_dim {ASSEMBLY_HEAD_DIM}, not {problem.head_dim}"
    rules = {
        "sinks": problem.has_sinks,
        "window": problem.sliding_window is not None,
        "soft cap": problem.soft_cap is not None,
    }
    asked = [name for name, is_asked in rules.items() if is_asked]
    if asked:
        return f"pa_fwd_asm has no {' and no '.join(asked)}"
    if not math.isclose(problem.scale, problem.head_dim**-0.5, rel_tol=1e-6):
        return f"pa_fwd_asm scales by head_dim ** -0.5 always, not by {problem.scale:g}"
    if problem.block_size != ASSEMBLY_BLOCK:
        return f"pa_fwd_asm reads blocks of {ASSEMBLY_BLOCK} tokens, not of {problem.block_size}"
    if problem.group_size > ASSEMBLY_GROUP:
        return f"pa_fwd_asm takes up to {ASSEMBLY_GROUP} query heads to a key head, not {problem.group_size}"
    return None


def why_not_unified(problem: AttentionProblem, platform: Platform) -> str | None:
    """Everything by `unified_attention`, over NHD blocks."""
    api = api_of(platform)
    if problem.cache.scales == TOKEN_SCALES:
        return "unified_attention takes one scale of a cache, and none of tokens"
    if problem.head_dim > UNIFIED_HEAD_DIM:
        return f"unified_attention is used for head_dim up to {UNIFIED_HEAD_DIM}, not {problem.head_dim}"
    if problem.block_size < UNIFIED_BLOCK or not is_power_of_two(problem.block_size):
        return (
            f"unified_attention takes a block as a tile: powers of two from {UNIFIED_BLOCK} on, not "
            f"{problem.block_size} tokens"
        )
    return api.why_not("unified_attention") or api.why_not("reshape_and_cache_flash")


def takes_queries(problem: AttentionProblem, max_queries: int) -> bool:
    """Whether `pa_fwd_asm` decodes requests of up to so many queries each."""
    if max_queries == 1:
        return True
    group = problem.group_size
    return group <= ASSEMBLY_QUERY_GROUP and group * max_queries <= ASSEMBLY_ROWS
