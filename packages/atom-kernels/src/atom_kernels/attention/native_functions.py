"""The C function of attention for some numbers: by vectors, or in AMX tiles where heads fill them."""

from __future__ import annotations

from collections.abc import Callable

from atom_kernels.dtypes import why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.platform import detect_platform

_LIBRARIES = {
    ("float32", "float32"): "attention_f32",
    ("float32", "float8_e4m3fn"): "attention_f32_e4m3",
    ("bfloat16", "bfloat16"): "attention_bf16",
    ("bfloat16", "float8_e4m3fn"): "attention_bf16_e4m3",
}
_SIGNATURE = {"attention": "pp" + "pppppp" + "pppp" + "pp" + "llll" + "pppp" + "llf"}
_HAS_TILES = {"has_tiles": "->l"}
# Channels of a tile.
_CHANNELS = 32


def unavailable(dtype: str, kv_cache_dtype: str) -> str | None:
    """None if the kernels of such numbers run on this machine, else the reason."""
    reason = why_not_dtype(dtype, list(dict.fromkeys(computed for computed, _ in _LIBRARIES)))
    if reason is not None:
        return reason
    caches = [cached for computed, cached in _LIBRARIES if computed == dtype]
    if kv_cache_dtype not in caches:
        return f"computes in {dtype} over a cache of {' or '.join(caches)}, not of {kv_cache_dtype}"
    return native_unavailable(_LIBRARIES[dtype, kv_cache_dtype])


def attention_function(dtype: str, kv_cache_dtype: str, *channels: int) -> Callable[..., None]:
    """``attention`` of attention.h.

    Args:
        dtype: what queries and results are, by torch name.
        kv_cache_dtype: what the cache holds, likewise.
        channels: how many a head of queries and keys has, and one of values, where that differs.
    """
    library = _LIBRARIES[dtype, kv_cache_dtype]
    if runs_in_tiles(dtype, channels):
        library += "_tiles"
    return load_native(library, _SIGNATURE).attention


def runs_in_tiles(dtype: str, channels: tuple[int, ...]) -> bool:
    """Whether heads of so many channels fill AMX tiles, and the system lets this process use these.

    It is asked for that, or it would end the process.
    """
    fills = dtype == "bfloat16" and not any(count % _CHANNELS for count in channels)
    if not fills or "amx_bf16" not in detect_platform().cpu_features or native_unavailable("attention_bf16_tiles"):
        return False
    return bool(load_native("attention_bf16_tiles", _HAS_TILES).has_tiles())
