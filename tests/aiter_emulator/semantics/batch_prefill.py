"""mha_batch_prefill_func: queries of any length over a paged cache, in three layouts of which PyPI has the last."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from .attend import attend, visible
from .checks import check_dtype, detect_unless, refuse_unless
from .host import ints, longest, page_ids, starts_of, take
from .layouts import tokens_of_rows, tokens_of_values, tokens_of_x_packed_keys, vector_width
from .varlen import alibi_of, check_heads, check_longest, check_sinks, result_buffers

Reader = Callable[[Tensor], Tensor]


def mha_batch_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    kv_indptr: Tensor,
    kv_page_indices: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None,
    logits_soft_cap: float,
    causal: bool,
    window: tuple[int, ...],
    alibi_slopes: Tensor | None,
    return_lse: bool,
    out: Tensor | None,
    kv_last_page_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    seqlen_k: Tensor | None = None,
    sinks: Tensor | None = None,
    only_tokens: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Writes and returns ``[total_q, heads, Dv]``. `only_tokens`: k and v are ``[tokens, heads, D]``, nothing else."""
    refuse_unless(not only_tokens or k.dim() == 3, "k must have shape [tokens, heads, head_dim]")
    page_size, num_kv_heads, value_dim, read_keys, read_values = _layout(q, k, v)
    check_heads(q, k, v, num_kv_heads, value_dim)
    width = 8 if only_tokens else vector_width(q)
    refuse_unless(q.shape[-1] % width == 0 and value_dim % width == 0, f"head sizes must be multiples of {width}")
    refuse_unless(cu_seqlens_q.dtype == torch.int32, "cu_seqlens_q must have dtype int32")
    q_starts = starts_of("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    rows, lengths = _rows_and_lengths(
        len(q_starts) - 1, kv_indptr, kv_page_indices, kv_last_page_lens, block_table, seqlen_k, page_size
    )
    out, lse = result_buffers(q, value_dim, out)
    check_longest("max_seqlen_q", max_seqlen_q, longest(q_starts))
    check_longest("max_seqlen_k", max_seqlen_k, max(lengths, default=0))
    check_sinks(sinks, q.shape[1], return_lse)
    left, right = (-1 if side >= max_seqlen_k else int(side) for side in window[:2])
    for index, (first, last) in enumerate(pairwise(q_starts)):
        ids = page_ids("kv_page_indices", rows[index], lengths[index], page_size, k.shape[0])
        keys, values = read_keys(take(k, ids))[: lengths[index]], read_values(take(v, ids))[: lengths[index]]
        result, sums = attend(
            q[first:last],
            keys,
            values,
            q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
            visible(last - first, lengths[index], causal, left, right),
            softcap=logits_soft_cap,
            bias=alibi_of(alibi_slopes, index, last - first, lengths[index]),
            sinks=sinks,
        )
        out[first:last] = result.to(out.dtype)
        lse[:, first:last] = sums
    return (out, lse) if return_lse else out


def _layout(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, Reader, Reader]:
    """Page size, heads and readers of 5-D shuffled, 4-D and 3-D caches, with the strides that the host code wants."""
    head_dim, x = q.shape[-1], vector_width(k)
    refuse_unless(k.dim() == v.dim() and k.dim() in (3, 4, 5), "K and V must be 5D (vectorized), 4D or 3D (linear)")
    if k.dim() == 5:
        pages, heads, _, page_size, _ = k.shape
        value_dim = v.shape[3]
        refuse_unless(page_size % x == 0, f"Vectorized KV requires page size divisible by {x}")
        wanted_k = (pages, heads, head_dim // x, page_size, x)
        wanted_v = (pages, heads, page_size // x, value_dim, x)
        for tensor in (k, v):
            refuse_unless(tensor[0, 0].is_contiguous(), "5D vectorized layout: a head's page must have no holes")
    else:
        page_size, heads, value_dim = k.shape[1] if k.dim() == 4 else 1, k.shape[-2], v.shape[-1]
        wanted_k, wanted_v = (*k.shape[:-1], head_dim), (*k.shape[:-1], value_dim)
        for tensor in (k, v):
            strides = [tensor.stride(i) for i in range(tensor.dim() - 1)]
            refuse_unless(tensor.stride(-1) == 1, "last dim must be contiguous")
            refuse_unless(
                all(
                    outer >= size * inner
                    for (outer, inner), size in zip(pairwise(strides), tensor.shape[1:], strict=False)
                ),
                "page stride must be >= num_heads * head_stride",
            )
            refuse_unless(all(stride % x == 0 for stride in strides), f"strides must be multiples of {x}")
    refuse_unless(tuple(k.shape) == wanted_k, f"k must have shape {wanted_k}")
    refuse_unless(tuple(v.shape) == wanted_v, f"v must have shape {wanted_v}")
    if k.dim() == 5:
        return page_size, heads, value_dim, tokens_of_x_packed_keys, tokens_of_values
    return page_size, heads, value_dim, tokens_of_rows, tokens_of_rows


def _rows_and_lengths(
    num_sequences: int,
    kv_indptr: Tensor,
    kv_page_indices: Tensor,
    kv_last_page_lens: Tensor | None,
    block_table: Tensor | None,
    seqlen_k: Tensor | None,
    page_size: int,
) -> tuple[list[list[int]], list[int]]:
    for name, tensor in {"kv_indptr": kv_indptr, "kv_page_indices": kv_page_indices}.items():
        refuse_unless(tensor.dtype == torch.int32, f"{name} must have dtype torch.int32")
    refuse_unless(kv_indptr.numel() == num_sequences + 1, "kv_indptr must have shape [batch + 1]")
    if block_table is not None:
        refuse_unless(seqlen_k is not None, "block_table requires seqlen_k for per-batch lengths")
        for name, tensor in {"block_table": block_table, "seqlen_k": seqlen_k}.items():
            refuse_unless(tensor.dtype == torch.int32, f"{name} must be int32")
            refuse_unless(tensor.shape[0] == num_sequences, f"{name} has another batch size")
        return ints(block_table), ints(seqlen_k)
    refuse_unless(
        page_size == 1 or kv_last_page_lens is not None,
        "if page_block_size > 1, must pass kv_last_page_lens to kernel",
    )
    starts, pages = starts_of("kv_indptr", kv_indptr, kv_page_indices.numel()), ints(kv_page_indices)
    lasts = [1] * num_sequences
    if kv_last_page_lens is not None:
        check_dtype("kv_last_page_lens", kv_last_page_lens, torch.int32)
        lasts = ints(kv_last_page_lens)
    detect_unless(
        all(0 < last <= page_size for last, (a, b) in zip(lasts, pairwise(starts), strict=True) if b > a),
        f"kv_last_page_lens {lasts} for pages of {page_size}",
    )
    lengths = [
        max(0, (b - a - 1) * page_size + last) * (b > a) for last, (a, b) in zip(lasts, pairwise(starts), strict=True)
    ]
    return [pages[a:b] for a, b in pairwise(starts)], lengths
