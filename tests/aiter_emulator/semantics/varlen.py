"""flash_attn_varlen_func: sequences of queries and keys behind one another, or keys in pages of 128 and more."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .attend import alibi, attend, visible
from .checks import check_apart, check_dtype, detect_unless, refuse_dtype, refuse_unless
from .host import ints, longest, page_ids, starts_of, take
from .layouts import tokens_of_rows

LARGEST_HEAD_DIM = 256


def flash_attn_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    min_seqlen_q: int,
    softmax_scale: float | None,
    logits_soft_cap: float,
    causal: bool,
    window: tuple[int, ...],
    alibi_slopes: Tensor | None,
    return_lse: bool,
    block_table: Tensor | None,
    out: Tensor | None,
    sinks: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Writes and returns ``[total_q, heads, Dv]`` in q's dtype; rows of no sequence stay as they are."""
    check_heads(q, k, v, k.shape[-2], v.shape[-1])
    for name, indptr in {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}.items():
        refuse_unless(indptr.dtype == torch.int32, f"{name} must have dtype int32")
        refuse_unless(indptr.is_contiguous(), f"{name} must be contiguous")
    refuse_unless(cu_seqlens_k.numel() == cu_seqlens_q.numel(), "cu_seqlens_k has another batch size")
    q_starts = starts_of("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    keys_of = _pages_of(k, v, cu_seqlens_k, block_table) if block_table is not None else _rows_of(k, v, cu_seqlens_k)
    out, lse = result_buffers(q, v.shape[-1], out)
    check_longest("max_seqlen_q", max_seqlen_q, longest(q_starts))
    check_longest("max_seqlen_k", max_seqlen_k, longest(ints(cu_seqlens_k)))
    check_sinks(sinks, q.shape[1], return_lse)
    left, right = (-1 if side >= max_seqlen_k else int(side) for side in window[:2])
    for index, (first, last) in enumerate(pairwise(q_starts)):
        if last == first or (min_seqlen_q > 0 and last - first <= min_seqlen_q):
            continue
        keys, values = keys_of(index)
        num_queries, num_keys = last - first, keys.shape[0]
        seen = visible(num_queries, num_keys, causal, left, right)
        result, sums = attend(
            q[first:last],
            keys,
            values,
            q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
            seen,
            softcap=logits_soft_cap,
            bias=alibi_of(alibi_slopes, index, num_queries, num_keys),
            sinks=sinks,
        )
        out[first:last] = result.to(out.dtype)
        lse[:, first:last] = sums
    return (out, lse) if return_lse else out


def refuse_training_options(
    dropout_p: float,
    bias: Tensor | None,
    return_attn_probs: bool,
    cu_seqlens_q_padded: Tensor | None,
    cu_seqlens_k_padded: Tensor | None,
    window: tuple[int, ...] = (-1, -1),
) -> None:
    """Options of training, and of padded batches, that the emulator does not have."""
    padded = cu_seqlens_q_padded is not None or cu_seqlens_k_padded is not None
    if dropout_p or bias is not None or return_attn_probs or padded or any(window[2:]):
        raise NotImplementedError(
            "the emulator has attention without dropout, bias, probabilities, padding, sink tokens"
        )


def check_heads(q: Tensor, k: Tensor, v: Tensor, num_kv_heads: int, value_dim: int) -> None:
    """What CK's host code checks of the three."""
    refuse_dtype("q", q, torch.float16, torch.bfloat16)
    refuse_unless(k.dtype == q.dtype and v.dtype == q.dtype, "query, key and value must have the same dtype")
    refuse_unless(max(q.shape[-1], value_dim) <= LARGEST_HEAD_DIM, "CK only supports head dimension at most 256")
    refuse_unless(q.shape[1] % num_kv_heads == 0, "Number of heads in key/value must divide number of heads in query")


def alibi_of(slopes: Tensor | None, sequence: int, num_queries: int, num_keys: int) -> Tensor | None:
    """The bias of one sequence, from slopes ``[heads]`` or ``[sequences, heads]``."""
    if slopes is None:
        return None
    check_dtype("alibi_slopes", slopes, torch.float32)
    return alibi(slopes if slopes.dim() == 1 else slopes[sequence], num_queries, num_keys)


def check_longest(name: str, said: int, actual: int) -> None:
    """The launch covers `said` tokens of each sequence; the rest would stay as it was."""
    detect_unless(said >= actual, f"{name} is {said}, a sequence has {actual} tokens")


def check_sinks(sinks: Tensor | None, num_heads: int, return_lse: bool) -> None:
    """One float32 logit for each query head."""
    if sinks is None:
        return
    check_dtype("sink_ptr", sinks, torch.float32)
    detect_unless(tuple(sinks.shape) == (num_heads,), f"sink_ptr has shape {tuple(sinks.shape)}, not ({num_heads},)")
    if return_lse:
        raise NotImplementedError("the emulator does not know whether the sums count the sinks")


def result_buffers(q: Tensor, value_dim: int, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The caller's out, or one full of NaN, which is what uninitialized memory is worth."""
    shape = (q.shape[0], q.shape[1], value_dim)
    if out is None:
        out = torch.full(shape, float("nan"), dtype=q.dtype)
    refuse_unless(out.dtype == q.dtype, "Output must have the same dtype as inputs")
    refuse_unless(out.stride(-1) == 1, "Output tensor must have contiguous last dimension")
    refuse_unless(tuple(out.shape) == shape, f"out has shape {tuple(out.shape)}, not {shape}")
    check_apart(out=out, q=q)
    return out, torch.full((q.shape[1], q.shape[0]), float("nan"))


def _rows_of(k: Tensor, v: Tensor, cu_seqlens_k: Tensor):
    refuse_unless(k.dim() == 3 and v.dim() == 3, "k and v must be [total_k, heads, head_dim]")
    refuse_unless(v.shape[:2] == k.shape[:2], "v has another shape than k")
    starts = starts_of("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    return lambda index: (k[starts[index] : starts[index + 1]], v[starts[index] : starts[index + 1]])


def _pages_of(k: Tensor, v: Tensor, cu_seqlens_k: Tensor, block_table: Tensor):
    refuse_unless(block_table.dtype == torch.int32, "block_table must have dtype torch.int32")
    refuse_unless(block_table.stride(-1) == 1, "block_table must have contiguous last dimension")
    refuse_unless(k.dim() == 4 and v.dim() == 4, "paged k and v must be [pages, page_size, heads, head_dim]")
    page_size = k.shape[1]
    refuse_unless(page_size % 128 == 0, "Paged KV cache block size must be divisible by 128")
    refuse_unless(v.shape[:3] == k.shape[:3], "v has another shape than k")
    table, starts = ints(block_table), ints(cu_seqlens_k)

    def keys_and_values(index: int) -> tuple[Tensor, Tensor]:
        length = starts[index + 1] - starts[index]
        ids = page_ids("block_table", table[index], length, page_size, k.shape[0])
        return tokens_of_rows(take(k, ids))[:length], tokens_of_rows(take(v, ids))[:length]

    return keys_and_values
