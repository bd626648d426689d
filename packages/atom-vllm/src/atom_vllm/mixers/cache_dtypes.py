"""How vLLM names what a cache holds, and which of that our attention can do here."""

from __future__ import annotations

from atom_kernels.attention import AttentionProblem
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError
from atom_kernels.platform import detect_platform
from atom_vllm.mixers.cache_view import plan_over_view

# As `--kv-cache-dtype` spells it.
DENSE_CACHES = ("auto", "float32", "float16", "bfloat16")
FLOAT8_CACHES = ("fp8", "fp8_e4m3")


def cache_format(kv_cache_dtype: str, dtype: str) -> CacheFormat:
    """How a cache of `kv_cache_dtype` holds the numbers of a model of `dtype`."""
    if kv_cache_dtype in FLOAT8_CACHES:
        return CacheFormat(detect_platform().float8)
    return CacheFormat(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def why_not_cached(kv_cache_dtype: str, dtype: str, head_size: int) -> str | None:
    """Why our kernels cannot keep keys and values as `kv_cache_dtype` here; None where they can, and are fast at it."""
    if kv_cache_dtype not in DENSE_CACHES + FLOAT8_CACHES:
        return f"a cache of {kv_cache_dtype} is left to it"
    cache = cache_format(kv_cache_dtype, dtype)
    problem = AttentionProblem(
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_size,
        scale=1.0,
        dtype=dtype,
        cache=cache,
        block_size=16,
    )
    what = f"heads of {head_size} in {dtype} over a cache of {cache.name}"
    try:
        plan = plan_over_view(problem)
    except UnsupportedMixerError as error:
        return f"{what} are left to it: {error}"
    if not plan.has_kernel:  # right, but slower than anything of vLLM's
        reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.reasons)
        return f"{what} are left to it here ({reasons})"
    return None
