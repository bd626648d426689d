"""The steps before attention in one kernel: norms and rotary embedding of q and k, and their way into the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .cache import check_packed_caches, quantize_per_head, rounded, targets, write_packed
from .checks import (
    check_apart,
    check_contiguous,
    check_dtype,
    check_indices,
    check_slots,
    detect_unless,
    refuse_dtype,
    refuse_unless,
)
from .rope import rotated

HEAD_DIMS = (64, 128, 256)
KV_HEADS = (1, 2, 4, 8, 16, 32)


def qk_norm_rope_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: tuple[int, int, int],
    head_dim: int,
    eps: float,
    weights: tuple[Tensor, Tensor],
    cos_sin_cache: Tensor,
    is_neox: bool,
    pos_ids: Tensor,
    caches: tuple[Tensor, Tensor],
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    scales: tuple[Tensor, Tensor],
) -> None:
    """Per head RMSNorm and rotation of q and k, in place; k and v into packed caches, fp8 with a scale a head.

    Args:
        q, k, v: ``[T, H * D]`` or ``[T, H, D]`` with any strides.
        cos_sin_cache: ``[max_position, D]``, cosines then sines.
        caches: K ``[B, Hk, D/x, bs, x]``; V in the order ``[B, Hv, bs/x, D, x]``, whichever rank it has.
        scales: ``[B, H, bs]`` float32, written if the cache is fp8.
    """
    views = [_heads(name, x, count, head_dim) for name, x, count in zip("qkv", (q, k, v), heads, strict=True)]
    _check_norm_rope(views, weights, cos_sin_cache, pos_ids, slot_mapping, head_dim)
    key_cache, value_cache = _shuffled_caches(views[1], caches, kv_cache_dtype)
    num_blocks, num_heads, _, block_size, _ = key_cache.shape
    slots = check_slots(slot_mapping[: len(q)], num_blocks * block_size)
    check_apart(q=views[0], k=views[1], v=views[2])
    check_apart(k=views[1], v=views[2])
    cos, sin = cos_sin_cache[pos_ids].float()[:, None].chunk(2, dim=-1)
    for x, weight in zip(views[:2], weights, strict=True):
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * weight.float()
        x.copy_(rotated(normed.to(x.dtype), cos, sin, is_neox))
    stored = [views[1], views[2]]
    if kv_cache_dtype != "auto":
        blocks, offsets, tokens = targets(slots, block_size)
        for i, (name, scale) in enumerate(zip(("k_scale", "v_scale"), scales, strict=True)):
            check_dtype(name, scale, torch.float32)
            check_contiguous(name, scale)
            wanted = num_blocks * num_heads * block_size
            detect_unless(scale.numel() == wanted, f"{name} has {scale.numel()} elements, the kernel writes {wanted}")
            stored[i], factors = quantize_per_head(stored[i], key_cache.dtype)
            scale.view(num_blocks, num_heads, block_size)[blocks, :, offsets] = factors[tokens]
    write_packed(stored[0], stored[1], key_cache, value_cache, slots)


def qk_rope_concat_cache_mla(
    q_nope: Tensor,
    q_pe: Tensor,
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    q_out: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor,
    q_scale: Tensor,
    positions: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    is_neox: bool,
    is_nope_first: bool,
    compute_all_q_rope: bool,
) -> None:
    """``q_out = [q_nope | rope(q_pe)]`` and ``cache[slot] = [kv_c | rope(k_pe)]``, each divided by its scale if fp8.

    Tokens without a slot leave their rows of `q_out` as they are, unless `compute_all_q_rope`.
    """
    kv_c, k_pe = (x.squeeze(1) if x.dim() == 3 and x.shape[1] == 1 else x for x in (kv_c, k_pe))
    refuse_unless(kv_c.dim() == 2 and k_pe.dim() == 2, "the emulator has one KV head: kv_c [T, R], k_pe [T, P]")
    refuse_unless(q_nope.shape[:2] == q_pe.shape[:2], "q_nope and q_pe have other heads")
    refuse_unless(kv_c.shape[1] == q_nope.shape[2], "kv_lora_rank and qk_lora_rank must be the same")
    refuse_unless(q_out.shape[2] == q_nope.shape[2] + q_pe.shape[2], "q_out is not R + P wide")
    refuse_unless(kv_c.stride(-1) == 1 and k_pe.stride(-1) == 1, "kv_c and k_pe must have rows without gaps")
    dtype = kv_c.dtype
    refuse_dtype("kv_cache", kv_cache, torch.float32, torch.float16, torch.bfloat16, machine.fp8())
    refuse_dtype("q_out", q_out, torch.float32, torch.float16, torch.bfloat16, machine.fp8())
    for name, x in {
        "q_nope": q_nope,
        "q_pe": q_pe,
        "k_pe": k_pe,
        "cos_cache": cos_cache,
        "sin_cache": sin_cache,
    }.items():
        check_dtype(name, x, dtype)
    for name, x in {"kv_cache": kv_cache, "q_out": q_out}.items():
        check_dtype(name, x, dtype, machine.fp8())
        detect_unless(x.stride(-1) == 1, f"{name} has gaps within rows")
    fp8_cache, fp8_query = kv_cache.dtype == machine.fp8(), q_out.dtype == machine.fp8()
    refuse_unless(fp8_cache or not fp8_query, "an fp8 q_out needs an fp8 cache")
    for name, x in {"positions": positions, "slot_mapping": slot_mapping}.items():
        check_dtype(name, x, torch.int64)
        check_contiguous(name, x)
    num_tokens = len(slot_mapping)
    detect_unless(min(map(len, (q_nope, kv_c, k_pe, q_out, positions))) >= num_tokens, "there are more slots than rows")
    slots = check_slots(slot_mapping, kv_cache.shape[0] * kv_cache.shape[1])
    check_apart(q_out=q_out, q_nope=q_nope, q_pe=q_pe, kv_c=kv_c, k_pe=k_pe)
    for name, table in {"cos_cache": cos_cache, "sin_cache": sin_cache}.items():
        check_contiguous(name, table)
        detect_unless(
            table.shape[-1] * 2 == q_pe.shape[-1], f"{name} rotates {table.shape[-1] * 2} of {q_pe.shape[-1]}"
        )
    blocks, offsets, tokens = targets(slots, kv_cache.shape[1])
    active = torch.arange(num_tokens) if compute_all_q_rope else tokens
    check_indices("positions", positions[active], len(cos_cache))
    cos, sin = (table.flatten(1)[positions[:num_tokens].clamp(0, len(table) - 1)] for table in (cos_cache, sin_cache))
    query = rotated(q_pe[:num_tokens], cos[:, None], sin[:, None], is_neox)
    key = rotated(k_pe[:num_tokens], cos, sin, is_neox)
    query = _joined(q_nope[:num_tokens].float(), query, is_nope_first) / (_one(q_scale) if fp8_query else 1)
    key = _joined(kv_c[:num_tokens].float(), key, is_nope_first) / (_one(k_scale) if fp8_cache else 1)
    q_out[active] = rounded(query[active], q_out.dtype)
    kv_cache[blocks, offsets] = rounded(key[tokens], kv_cache.dtype)


def _joined(nope: Tensor, pe: Tensor, nope_first: bool) -> Tensor:
    return torch.cat((nope, pe) if nope_first else (pe, nope), dim=-1)


def _one(scale: Tensor) -> Tensor:
    check_dtype("scale", scale, torch.float32)
    detect_unless(scale.numel() == 1, f"a scale has {scale.numel()} elements, the kernel reads the first")
    return scale.reshape(())


def _heads(name: str, x: Tensor, count: int, head_dim: int) -> Tensor:
    """A view ``[T, H, D]``."""
    refuse_unless(x.dim() in (2, 3), f"{name} must have 2 or 3 dimensions")
    wanted = (count * head_dim,) if x.dim() == 2 else (count, head_dim)
    refuse_unless(x.shape[1:] == wanted, f"{name} has shape {tuple(x.shape)} for {count} heads of {head_dim}")
    return x.unflatten(1, (count, head_dim)) if x.dim() == 2 else x


def _check_norm_rope(
    views: list[Tensor],
    weights: tuple[Tensor, Tensor],
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    slot_mapping: Tensor,
    head_dim: int,
) -> None:
    q, k, v = views
    refuse_unless(head_dim in HEAD_DIMS, f"Unsupported head dimension: {head_dim}")
    refuse_unless(k.shape[1] in KV_HEADS, f"Unsupported num_kv_heads: {k.shape[1]}")
    detect_unless(k.shape[1] == v.shape[1], f"{k.shape[1]} heads of k, {v.shape[1]} of v")
    refuse_unless(len(q) == len(k) == len(v) == len(pos_ids), "q, k, v and pos_ids have other numbers of tokens")
    refuse_unless(q.dtype == k.dtype == v.dtype, "q, k and v have different dtypes")
    for name, tensor in {"pos_ids": pos_ids, "slot_mapping": slot_mapping}.items():
        refuse_unless(tensor.dtype == torch.int64, f"{name} is {tensor.dtype}, int64 is expected")
        refuse_unless(tensor.is_contiguous() and tensor.dim() == 1, f"{name} must be one contiguous dimension")
    detect_unless(len(slot_mapping) >= len(q), "there are fewer slots than tokens")
    for weight in weights:
        refuse_unless(weight.dtype == q.dtype, "the norms' weights must have the dtype of q")
        refuse_unless(weight.shape == (head_dim,) and weight.is_contiguous(), "the norms' weights must be [head_dim]")
    refuse_unless(
        cos_sin_cache.dim() == 2 and cos_sin_cache.shape[1] == head_dim, "cos_sin_cache must be head_dim wide"
    )
    refuse_unless(cos_sin_cache.is_contiguous(), "cos_sin_cache must be contiguous")
    check_dtype("cos_sin_cache", cos_sin_cache, q.dtype)
    check_indices("pos_ids", pos_ids, len(cos_sin_cache))


def _shuffled_caches(key: Tensor, caches: tuple[Tensor, Tensor], kv_cache_dtype: str) -> tuple[Tensor, Tensor]:
    key_cache, value_cache = caches
    refuse_unless(kv_cache_dtype in ("auto", "fp8", "fp8_e4m3"), f"Unsupported data type of kv cache: {kv_cache_dtype}")
    refuse_unless(key_cache.dim() == 5 and value_cache.dim() in (4, 5), "k_cache must be 5-D, v_cache 4-D or 5-D")
    refuse_unless(key_cache.is_contiguous() and value_cache.is_contiguous(), "the caches must be contiguous")
    for name, cache in {"k_cache": key_cache, "v_cache": value_cache}.items():
        check_dtype(name, cache, key.dtype if kv_cache_dtype == "auto" else machine.fp8())
    if value_cache.dim() == 4:
        num_blocks, num_heads, head_dim, block_size = value_cache.shape
        x = key_cache.shape[-1]
        refuse_unless(block_size % x == 0, f"page_size {block_size} must be divisible by x {x}")
        value_cache = value_cache.view(num_blocks, num_heads, block_size // x, head_dim, x)
    check_packed_caches(key, key_cache, value_cache, shuffled_values=True)
    return key_cache, value_cache
