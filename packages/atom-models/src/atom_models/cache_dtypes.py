"""What users call the number formats of cached keys and values, and what is stored. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.mixers.cache_format import TOKEN_SCALES, CacheFormat

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

CACHE_DTYPES = ("auto", "bf16", "fp8", "fp8_per_token_head")


def stored_dtype(kv_cache_dtype: str, dtype: str, platform: Platform) -> str:
    """The name of the format in which a cache is kept, see `CacheFormat.named`.

    Args:
        kv_cache_dtype: one of `CACHE_DTYPES`; "auto" is `dtype`, "fp8" the platform's own kind of float8, and
            "fp8_per_token_head" the same with a scale for each token and head.
        dtype: the model's dtype.

    Raises:
        ValueError: `kv_cache_dtype` is another word.
    """
    if kv_cache_dtype not in CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}; allowed are {', '.join(CACHE_DTYPES)}")
    if kv_cache_dtype == "fp8_per_token_head":
        return CacheFormat(platform.float8, TOKEN_SCALES).name
    return {"auto": dtype, "bf16": "bfloat16", "fp8": platform.float8}[kv_cache_dtype]
