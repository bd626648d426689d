"""Writing keys and values into paged caches, in the layouts that the attention kernels read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import machine
from .checks import (
    check_contiguous,
    check_dtype,
    check_rows,
    check_shape,
    check_slots,
    detect_unless,
    refuse_dtype,
    refuse_or_misread,
    refuse_unless,
)

WRITTEN = (torch.float32, torch.float16, torch.bfloat16)


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    asm_layout: bool,
) -> None:
    """``key, value [T, H, D]`` into K ``[B, H, D/x, bs, x]`` and V ``[B, H, D, bs]``, or ``[B, H, bs/x, D, x]``."""
    _check_tokens(key, value)
    for name, cache in {"key_cache": key_cache, "value_cache": value_cache}.items():
        _check_cache_dtype(name, cache, key.dtype, kv_cache_dtype)
    check_packed_caches(key, key_cache, value_cache, asm_layout)
    if machine.release() == "git":
        check_dtype("slot_mapping", slot_mapping, torch.int64, torch.int32)
    else:
        refuse_or_misread("slot_mapping", slot_mapping, torch.int64)
    slots = _token_slots(slot_mapping, len(key), key_cache.shape[0] * key_cache.shape[3])
    quantized = kv_cache_dtype != "auto"
    scales = [scale_value(name, scale) for name, scale in (("k_scale", k_scale), ("v_scale", v_scale))]
    stored = [x.float() / scale if quantized else x for x, scale in zip((key, value), scales, strict=True)]
    write_packed(stored[0], stored[1], key_cache, value_cache, slots)


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """``key, value [T, H, D]`` into ``[B, bs, H, D]``: a stride between blocks, each block contiguous."""
    _check_tokens(key, value)
    refuse_unless(key_cache.stride(0) == value_cache.stride(0), "the caches have different strides between blocks")
    for name, cache in {"key_cache": key_cache, "value_cache": value_cache}.items():
        _check_cache_dtype(name, cache, key.dtype, kv_cache_dtype)
        check_shape(name, cache, *key_cache.shape[:2], *key.shape[1:])
        check_rows(name, cache, contiguous_dims=3)
    refuse_or_misread("slot_mapping", slot_mapping, torch.int64)
    slots = _token_slots(slot_mapping, len(key), key_cache.shape[0] * key_cache.shape[1])
    for x, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        factor = scale_value("scale", scale)
        blocks, offsets, tokens = targets(slots, cache.shape[1])
        _store(cache, (blocks, offsets), x[tokens] if kv_cache_dtype == "auto" else x[tokens].float() / factor)


def reshape_and_cache_with_pertoken_quant(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    k_dequant_scales: Tensor,
    v_dequant_scales: Tensor,
    slot_mapping: Tensor,
    asm_layout: bool,
) -> None:
    """One scale for each token and head, ``amax / max of the cache's dtype``; K and V packed as `reshape_and_cache`.

    Scales: ``[B, H, bs]`` with `asm_layout`, else ``[H, max_kv_tokens]`` at the slot.
    """
    _check_tokens(key, value)
    refuse_unless(key.shape[2] <= 512, f"Unsupported head_size: {key.shape[2]}")
    refuse_dtype("key_cache", key_cache, machine.fp8(), torch.int8)
    check_dtype("value_cache", value_cache, key_cache.dtype)
    check_packed_caches(key, key_cache, value_cache, asm_layout)
    refuse_or_misread("slot_mapping", slot_mapping, torch.int64)
    num_blocks, num_heads, _, block_size, _ = key_cache.shape
    slots = _token_slots(slot_mapping, len(key), num_blocks * block_size)
    for name, scales in {"k_dequant_scales": k_dequant_scales, "v_dequant_scales": v_dequant_scales}.items():
        check_dtype(name, scales, torch.float32)
        check_contiguous(name, scales)
        shape = (num_blocks, num_heads, block_size) if asm_layout else (num_heads, k_dequant_scales.shape[-1])
        check_shape(name, scales, *shape)
        detect_unless(asm_layout or slots.max(initial=-1) < scales.shape[1], f"{name} has no place for the last slots")
    blocks, offsets, tokens = targets(slots, block_size)
    quantized = []
    for x, scales in ((key, k_dequant_scales), (value, v_dequant_scales)):
        values, scale = quantize_per_head(x, key_cache.dtype)
        quantized.append(values)
        if asm_layout:
            scales[blocks, :, offsets] = scale[tokens]
        else:
            scales[:, slots[tokens]] = scale[tokens].t()
    write_packed(quantized[0], quantized[1], key_cache, value_cache, slots)


def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """``[kv_c | k_pe]`` of the first ``len(slot_mapping)`` tokens into ``[B, bs, R + P]``; fp8 stores ``x / scale``."""
    check_shape("kv_c", kv_c, None, None)
    check_shape("k_pe", k_pe, None, None)
    refuse_unless(kv_cache.shape[-1] == kv_c.shape[1] + k_pe.shape[1], "the cache's rows are not R + P wide")
    check_shape("kv_cache", kv_cache, None, None, None)
    detect_unless(len(slot_mapping) <= min(len(kv_c), len(k_pe)), "there are more slots than tokens")
    check_dtype("k_pe", k_pe, kv_c.dtype)
    _check_cache_dtype("kv_cache", kv_cache, kv_c.dtype, kv_cache_dtype)
    for name, x in {"kv_c": kv_c, "k_pe": k_pe, "kv_cache": kv_cache}.items():
        check_rows(name, x)
    refuse_or_misread("slot_mapping", slot_mapping, torch.int64)
    factor = scale_value("scale", scale)
    slots = _token_slots(slot_mapping, len(slot_mapping), kv_cache.shape[0] * kv_cache.shape[1])
    blocks, offsets, tokens = targets(slots, kv_cache.shape[1])
    rows = torch.cat((kv_c[tokens], k_pe[tokens]), dim=-1)
    _store(kv_cache, (blocks, offsets), rows if kv_cache_dtype == "auto" else rows.float() / factor)


def check_packed_caches(key: Tensor, key_cache: Tensor, value_cache: Tensor, shuffled_values: bool) -> None:
    """K ``[B, H, D/x, bs, x]`` and V ``[B, H, D, bs]`` or ``[B, H, bs/x, D, x]``, contiguous, x = 16 bytes."""
    _, num_heads, head_dim = key.shape
    check_shape("key_cache", key_cache, None, num_heads, None, None, None)
    num_blocks, _, _, block_size, x = key_cache.shape
    detect_unless(x * key_cache.element_size() == 16, f"x = {x}: attention kernels read pieces of 16 bytes")
    check_shape("key_cache", key_cache, num_blocks, num_heads, head_dim // x, block_size, x)
    detect_unless(head_dim % x == 0, f"heads of {head_dim} are no multiple of x = {x}")
    if shuffled_values:
        detect_unless(block_size % x == 0, f"blocks of {block_size} tokens are no multiple of x = {x}")
        check_shape("value_cache", value_cache, num_blocks, num_heads, block_size // x, head_dim, x)
    else:
        check_shape("value_cache", value_cache, num_blocks, num_heads, head_dim, block_size)
    check_contiguous("key_cache", key_cache)
    check_contiguous("value_cache", value_cache)


def write_packed(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: np.ndarray) -> None:
    """Store ``[T, H, D]`` rows at their slots, V's layout by its number of dimensions; negative slots are left out."""
    x = key_cache.shape[-1]
    blocks, offsets, tokens = targets(slots, key_cache.shape[3])
    rows = key[tokens].unflatten(-1, (-1, x))
    key_cache[blocks, :, :, offsets] = rounded(rows, key_cache.dtype)
    values = rounded(value[tokens], value_cache.dtype)
    if value_cache.dim() == 5:
        value_cache[blocks, :, offsets // x, :, offsets % x] = values
    else:
        value_cache[blocks, :, :, offsets] = values


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To the cache's dtype; fp8 and int8 saturate as the hardware does."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        limit = torch.finfo(dtype).max
        return x.float().clamp(-limit, limit).to(dtype)
    if dtype == torch.int8:
        return x.float().round().clamp(-128, 127).to(dtype)
    return x.to(dtype)


def quantize_per_head(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x / scale`` and the scales ``[T, H]``, the largest element of a head at the dtype's maximum."""
    largest = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    scale = x.float().abs().amax(-1) / largest
    return x.float() / scale[..., None], scale


def scale_value(name: str, scale: Tensor | None) -> Tensor | float:
    """The one float32 that the kernel dereferences."""
    if scale is None:
        return 1.0
    refuse_or_misread(name, scale, torch.float32)
    detect_unless(scale.numel() == 1, f"{name} has {scale.numel()} elements, the kernel reads the first")
    return scale.reshape(())


def _check_tokens(key: Tensor, value: Tensor) -> None:
    refuse_dtype("key", key, *WRITTEN)
    check_shape("key", key, None, None, None)
    check_shape("value", value, *key.shape)
    check_dtype("value", value, key.dtype)
    check_rows("key", key, contiguous_dims=2)
    check_rows("value", value, contiguous_dims=2)


def _check_cache_dtype(name: str, cache: Tensor, source: torch.dtype, kv_cache_dtype: str) -> None:
    refuse_unless(kv_cache_dtype in ("auto", "fp8", "fp8_e4m3"), f"Unsupported data type of kv cache: {kv_cache_dtype}")
    check_dtype(name, cache, *([source] if kv_cache_dtype == "auto" else [machine.fp8(), torch.uint8]))


def _token_slots(slot_mapping: Tensor, num_tokens: int, num_slots: int) -> np.ndarray:
    check_shape("slot_mapping", slot_mapping, num_tokens)
    check_contiguous("slot_mapping", slot_mapping)
    return check_slots(slot_mapping, num_slots)


def targets(slots: np.ndarray, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(blocks, offsets, tokens) of the tokens that have a slot."""
    tokens = np.nonzero(slots >= 0)[0]
    taken = slots[tokens].astype(np.int64)
    return torch.from_numpy(taken // block_size), torch.from_numpy(taken % block_size), torch.from_numpy(tokens)


def _store(cache: Tensor, index: tuple[Tensor, Tensor], rows: Tensor) -> None:
    if cache.dtype == torch.uint8:
        cache = cache.view(machine.fp8())
    cache[index] = rounded(rows, cache.dtype)
