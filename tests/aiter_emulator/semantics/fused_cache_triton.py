"""The Triton kernels that rotate q and k and write the cache: strides are honoured, sizes are powers of two."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import machine
from .cache import rounded, targets
from .checks import check_apart, check_contiguous, check_indices, check_slots, detect_unless
from .rope import rotated


def qk_rope_reshape_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos: Tensor,
    sin: Tensor,
    scales: tuple[Tensor | None, Tensor | None],
    is_neox: bool,
    flash_layout: bool,
    offs: Tensor | None,
    q_out: Tensor | None,
    k_out: Tensor | None,
    zeros_out: Tensor | None,
) -> tuple[Tensor, ...]:
    """Rotated q and k as new tensors (or in `q_out`, `k_out`), k and v in the cache.

    Args:
        q: ``[T, QH, D]``; k, v: ``[T, KH, D]``.
        key_cache, value_cache: ``[B, bs, KH, D]`` with `flash_layout`, else ``[B, KH, D/x, bs, x]`` and
            ``[B, KH, D, bs]``; git also takes values as ``[B, KH, bs/x, D, x]``.
        scales: one number each, None for none.

    Rows of tokens without a slot are not written to `k_out`.
    """
    _check_cache_dtypes(key_cache, value_cache)
    block_size = _check_sizes(q, k, v, key_cache, value_cache, flash_layout)
    _check_tables(q, pos, cos, sin)
    detect_unless(len(slot_mapping) == len(q), "with fewer slots than tokens, heads of the last tokens are left out")
    check_contiguous("slot_mapping", slot_mapping)
    slots = check_slots(slot_mapping, len(key_cache) * block_size)
    at = pos if offs is None else pos + offs
    check_indices("pos", at, len(cos))
    angles = [table.flatten(1)[at][:, None] for table in (cos, sin)]
    query, key = (rotated(x, *angles, is_neox) for x in (q, k))
    q_out = _written("q_out", q_out, query, q)
    blocks, offsets, tokens = targets(slots, block_size)
    k_out = _written("k_out", k_out, key, k, tokens)
    check_apart(q_out=q_out, k=k, v=v, k_out=k_out)
    check_apart(k_out=k_out, v=v)
    for rows, cache, scale in ((key, key_cache, scales[0]), (v.float(), value_cache, scales[1])):
        stored = rounded(rows[tokens] / _one(scale), cache.dtype)
        if flash_layout:
            cache[blocks, offsets] = stored
        elif cache is key_cache:
            cache[blocks, :, :, offsets] = stored.unflatten(-1, (-1, cache.shape[-1]))
        elif cache.dim() == 5:
            x = cache.shape[-1]
            cache[blocks, :, offsets // x, :, offsets % x] = stored
        else:
            cache[blocks, :, :, offsets] = stored
    outputs = (q_out, k_out, key_cache, value_cache)
    return outputs if zeros_out is None else (*outputs, zeros_out.zero_())


def qk_rope_cat_cache_mla(
    q_nope: Tensor,
    q_pe: Tensor,
    k_nope: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos: Tensor,
    sin: Tensor,
    scale: Tensor | None,
    is_neox: bool,
    num_decode_toks_for_zeros: int,
    q_out: Tensor | None,
    decode_q_pe_out: Tensor | None,
    k_pe_out: Tensor | None,
    q_out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``q_out = [q_nope | rope(q_pe)]``, ``cache[slot] = [k_nope | rope(k_pe)] / scale``.

    Args:
        q_nope, q_pe: ``[B, QH, .]`` decode tokens, the first of the k tokens.
        k_nope, k_pe: ``[B_slot, KH, .]``; those after the B first are stored as they are, not rotated.
        kv_cache: ``[slots, KH, .]``.

    Returns:
        (q_out, decode_q_pe_out, k_pe_out, zeros of the shape of q_nope for the decode tokens)
    """
    num_queries, num_slots = len(q_nope), len(slot_mapping)
    _check_cache_dtypes(kv_cache, kv_cache)
    if machine.release() == "git":
        assert q_nope.shape[2] == k_nope.shape[2], "D dimension of q_nope and k_nope should be identical"
        assert kv_cache.stride(-1) == 1, "The stride of the last dimension of KV cache must be 1"
    assert (len(q_pe), len(k_pe)) == (num_queries, len(k_nope)), "batch dimensions should be identical"
    assert max(num_slots, num_queries) <= len(k_nope), "there are fewer keys than slots or queries"
    assert q_nope.shape[1] == q_pe.shape[1], "Q head should be identical"
    assert k_nope.shape[1] == k_pe.shape[1] == kv_cache.shape[1], "K head should be identical"
    assert q_nope.shape[1] % k_nope.shape[1] == 0, "Q heads must be multiple of H heads"
    assert q_pe.shape[2] == k_pe.shape[2], "D dimension of q_pe and k_pe should be identical"
    assert k_nope.shape[2] + k_pe.shape[2] == kv_cache.shape[2], "the cache's rows are not k_nope and k_pe"
    _assert_powers_of_two(q_nope.shape[2], k_nope.shape[2], q_pe.shape[2])
    detect_unless(num_slots >= num_queries, "with fewer slots than queries, heads of the last ones are left out")
    _check_tables(q_pe, pos, cos, sin)
    check_contiguous("slot_mapping", slot_mapping)
    slots = check_slots(slot_mapping, len(kv_cache))
    check_indices("pos", pos[:num_queries], len(cos))
    angles = [table.flatten(1)[pos[:num_queries]][:, None] for table in (cos, sin)]
    query, key = rotated(q_pe, *angles, is_neox), k_pe.float().clone()
    key[:num_queries] = rotated(k_pe[:num_queries], *angles, is_neox)
    joined = torch.cat((q_nope.float(), query), dim=-1)
    if q_out is None:
        q_out = torch.empty(joined.shape, dtype=q_out_dtype or q_nope.dtype)
    q_out = _written("q_out", q_out, joined, q_nope)
    tokens = torch.from_numpy(np.nonzero(slots >= 0)[0])
    k_pe_out = _written("k_pe_out", k_pe_out, key, k_pe, tokens)
    zeros_of = num_decode_toks_for_zeros
    decode_q_pe_out = _written("decode_q_pe_out", decode_q_pe_out, query[:zeros_of], q_nope)
    check_apart(q_out=q_out, k_nope=k_nope, k_pe=k_pe)
    rows = torch.cat((k_nope.float(), key), dim=-1)[tokens]
    kv_cache[slot_mapping[tokens].long()] = rounded(rows / _one(scale), kv_cache.dtype)
    return q_out, decode_q_pe_out, k_pe_out, q_nope.new_zeros(zeros_of, q_nope.shape[1], k_nope.shape[2])


def _written(name: str, out: Tensor | None, values: Tensor, like: Tensor, rows: Tensor | None = None) -> Tensor:
    """`values` in `out`, or in fresh memory whose unwritten rows are not a number."""
    if out is None:
        out = torch.full(values.shape, torch.nan, dtype=like.dtype)
    assert out.shape == values.shape, f"{name} shape mismatch: {tuple(out.shape)}, not {tuple(values.shape)}"
    index = slice(None) if rows is None else rows
    out[index] = rounded(values[index], out.dtype)
    return out


def _one(scale: Tensor | None) -> Tensor | float:
    if scale is None:
        return 1.0
    assert scale.numel() == 1, "a scale should be a single element"
    return scale.reshape(()).float()


def _check_cache_dtypes(key_cache: Tensor, value_cache: Tensor) -> None:
    """git names the dtypes that it takes; packed FP4 (uint8) is not emulated."""
    if machine.release() == "git":
        known = (torch.bfloat16, machine.fp8())
        assert key_cache.dtype in known, f"KV cache dtype must be BF16, FP8 or packed FP4, not {key_cache.dtype}"
    detect_unless(key_cache.dtype == value_cache.dtype, "the caches have different dtypes")
    wrong_fp8 = key_cache.dtype in machine.FP8_DTYPES.values() and key_cache.dtype != machine.fp8()
    detect_unless(not wrong_fp8, f"{key_cache.dtype} is not the fp8 of {machine.arch()}")


def _check_sizes(q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, flash_layout: bool) -> int:
    """The block size."""
    num_tokens, num_heads, head_dim = k.shape
    assert len(q) == num_tokens == len(v), "Number of tokens should be identical for q, k and v"
    assert q.shape[1] % num_heads == 0, "Q heads must be multiple of H heads"
    if flash_layout:
        num_blocks, block_size, *heads = key_cache.shape
        assert heads == [num_heads, head_dim], "key_cache is not [blocks, block_size, KH, D]"
        assert value_cache.shape == key_cache.shape, "key_cache and value_cache have different shapes"
    else:
        num_blocks, heads, pieces, block_size, x = key_cache.shape
        assert (heads, pieces * x) == (num_heads, head_dim), "key_cache is not [blocks, KH, D/x, block_size, x]"
        wanted = (num_blocks, num_heads, head_dim, block_size)
        if value_cache.dim() == 5 and machine.release() == "git":
            wanted = (num_blocks, num_heads, block_size // x, head_dim, x)
        assert tuple(value_cache.shape) == wanted, f"value_cache is not {wanted}"
        _assert_powers_of_two(x)
    assert (q.shape[2], *v.shape[1:]) == (head_dim, num_heads, head_dim), "D or heads differ between q, k and v"
    _assert_powers_of_two(head_dim, block_size)
    return block_size


def _check_tables(x: Tensor, pos: Tensor, cos: Tensor, sin: Tensor) -> None:
    width = x.shape[-1]
    assert cos.shape[-1] in (width, width // 2), "cos/sin last dim should be the same or half of the qk last dim"
    same = cos.shape == sin.shape and cos.stride() == sin.stride()
    detect_unless(same and cos.numel() == len(cos) * cos.shape[-1], "sin is read with the strides of cos [max_pos, .]")
    detect_unless(not pos.dtype.is_floating_point, f"pos is {pos.dtype}")
    check_contiguous("pos", pos)


def _assert_powers_of_two(*sizes: int) -> None:
    assert all(size & (size - 1) == 0 for size in sizes), f"sizes {sizes} should be powers of 2"
