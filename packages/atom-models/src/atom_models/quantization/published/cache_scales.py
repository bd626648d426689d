"""The scales of an fp8 KV cache in a checkpoint: their names, in the spellings of several quantizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.quantization.published.headers import Header, Headers

# Behind the name of an attention block; the first that is there is taken. {} is "k" or "v".
_NAMES = (
    "{}_scale",
    "attn.{}_scale",
    "{}_proj.{}_scale",
    "qkv_proj.{}_scale",
    "{}_proj.output_scale",
    "{}_cache.scale",
    "kv_scale",
    "attn.kv_scale",
)
# Fields of a config that say that a checkpoint has them: of compressed-tensors and Hugging Face's fp8, modelopt, Quark.
_FIELDS = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_config", "kv_cache_group")


@dataclass(frozen=True)
class StoredScale:
    """A tensor of the checkpoint: one number, or one for each head of keys and values."""

    name: str
    header: Header


@dataclass(frozen=True)
class CacheScales:
    """Those of one attention block. Where a checkpoint has but one of them, it is both."""

    key: StoredScale
    value: StoredScale


def declared_cache_scales(given: Mapping[str, Any]) -> str | None:
    """The field of a `quantization_config` that declares scales of an fp8 KV cache; None if they follow the numbers."""
    fields = {**given, **(given.get("export") or {})}
    for name in _FIELDS:
        value = fields.get(name)
        if value and not (isinstance(value, Mapping) and value.get("dynamic")):
            return name
    return None


def find_cache_scales(attention: str, headers: Headers) -> CacheScales | None:
    """The scales that belong to the attention block of that name, None if there are none."""
    key, value = (_find(attention, kind, headers) for kind in "kv")
    if key is None and value is None:
        return None
    return CacheScales(key or value, value or key)  # type: ignore[arg-type]


def _find(attention: str, kind: str, headers: Headers) -> StoredScale | None:
    names = [f"{attention}.{pattern.replace('{}', kind)}" for pattern in _NAMES]
    return next((StoredScale(name, headers.tensors[name]) for name in names if name in headers.tensors), None)
