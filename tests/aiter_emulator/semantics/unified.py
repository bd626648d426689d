"""unified_attention: prefill and decode over pages of any strides, causal, with sinks, a window, a soft cap."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .attend import attend, visible
from .checks import check_apart, check_contiguous, check_rows, check_shape, detect_unless, refuse_unless
from .host import ints, longest, page_ids, take, true_everywhere
from .layouts import (
    check_shuffled_values,
    check_x_packed_keys,
    tokens_of_rows,
    tokens_of_values,
    tokens_of_x_packed_keys,
)


def unified_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    seqused_k: Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: Tensor,
    softcap: float,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    *,
    shuffled: bool = False,
    decode_tile_is_page: bool = False,
) -> None:
    """Writes out ``[tokens, heads, D]``. Keys and values are ``[pages, page_size, kv_heads, D]`` with any strides.

    Args:
        window_size: the first number, plus one, is how many tokens a query sees, itself counted; -1 is no window.
        shuffled: keys are x-packed and values shuffled instead.
        decode_tile_is_page: in decode, this release's kernels read whole pages: their size is a power of two, and what
            lies behind the end of a sequence is multiplied by zero.
    """
    assert causal, "Only causal attention is supported"
    if sinks is not None:
        assert sinks.shape[0] == q.shape[1], "Sinks must be num_query_heads size"
    page_size, num_kv_heads = _check_caches(q, k, v, shuffled)
    if decode_tile_is_page and max_seqlen_q == 1:
        refuse_unless(page_size & (page_size - 1) == 0, f"arange's range must be a power of 2, pages have {page_size}")
    detect_unless(q.shape[1] % num_kv_heads == 0, f"{q.shape[1]} heads over {num_kv_heads} KV heads")
    check_rows("q", q)
    check_rows("out", out)
    check_shape("out", out, *q.shape)
    check_apart(out=out, q=q)
    is_fp8 = k.dtype == machine.fp8()
    refuse_unless(is_fp8 or k.dtype == q.dtype, f"q is {q.dtype}, the cache {k.dtype}")
    refuse_unless(
        not is_fp8 or (k_descale is not None and v_descale is not None), "an fp8 cache needs k_ and v_descale"
    )
    check_contiguous("cu_seqlens_q", cu_seqlens_q)
    check_contiguous("seqused_k", seqused_k)
    starts, lengths, table = ints(cu_seqlens_q), ints(seqused_k), ints(block_table)
    detect_unless(starts[0] == 0 and starts == sorted(starts) and starts[-1] <= q.shape[0], f"cu_seqlens_q is {starts}")
    detect_unless(len(lengths) == len(starts) - 1, f"{len(lengths)} lengths for {len(starts) - 1} sequences")
    detect_unless(len(table) >= len(lengths), f"block_table has {len(table)} rows for {len(lengths)} sequences")
    detect_unless(max_seqlen_q >= longest(starts), f"max_seqlen_q is {max_seqlen_q}, a sequence has {longest(starts)}")
    detect_unless(max_seqlen_k >= max(lengths, default=0), f"max_seqlen_k is {max_seqlen_k} for {lengths}")
    reads_ends = decode_tile_is_page and (max_seqlen_q == 1 or page_size == 64)
    left = int(window_size[0]) if window_size[0] >= 0 else -1
    softcap = softcap if softcap > 0 else 0.0
    for index, length in enumerate(lengths):
        first, last = starts[index], starts[index + 1]
        if first == last:
            continue
        detect_unless(length >= last - first, f"{last - first} queries at {length} tokens of context")
        ids = page_ids("block_table", table[index], length, page_size, k.shape[0])
        read_keys, read_values = (tokens_of_x_packed_keys, tokens_of_values) if shuffled else (tokens_of_rows,) * 2
        keys, values = read_keys(take(k, ids))[:length], read_values(take(v, ids))
        detect_unless(
            not reads_ends or true_everywhere(values[length:].isfinite()),
            "values behind the end of a sequence are not finite: times zero, they make its result NaN",
        )
        values = values[:length]
        if is_fp8:
            keys, values = (
                (keys * k_descale.reshape(-1)[0]).to(q.dtype),
                (values * v_descale.reshape(-1)[0]).to(q.dtype),
            )
        bias = None
        if alibi_slopes is not None:
            bias = alibi_slopes[:, None, None] * (torch.arange(length) - (length - last + first))
        seen = visible(last - first, length, causal=True, left=left)
        result, _ = attend(q[first:last], keys, values, softmax_scale, seen, softcap=softcap, bias=bias, sinks=sinks)
        out[first:last] = result.to(out.dtype)


def _check_caches(q: Tensor, k: Tensor, v: Tensor, shuffled: bool) -> tuple[int, int]:
    """Page size and KV heads; pages may lie in any order of dimensions, which strides tell."""
    detect_unless(v.dtype == k.dtype, f"v is {v.dtype}, k {k.dtype}")
    if shuffled:
        check_x_packed_keys("k", k, q.shape[-1])
        check_shuffled_values("v", v, k, q.shape[-1])
        page_size = k.shape[3]
        assert page_size & (page_size - 1) == 0, f"pre-shuffled KV cache requires a power-of-2 page, got {page_size}"
        return page_size, k.shape[1]
    refuse_unless(k.dim() == 4 and v.dim() == 4, "k and v must be [pages, page_size, kv_heads, head_dim]")
    check_shape("k", k, None, None, None, q.shape[-1])
    check_shape("v", v, *k.shape)
    return k.shape[1], k.shape[2]
