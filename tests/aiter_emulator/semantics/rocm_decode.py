"""paged_attention_rocm: paged decode compiled for each head size, in partitions of 256 tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .attend import attend, visible
from .checks import check_apart, check_contiguous, check_dtype, check_shape, detect_unless, refuse_dtype, refuse_unless
from .host import check_index, ints, page_ids, take
from .layouts import (
    check_same_page_strides,
    check_values,
    check_x_packed_keys,
    scales_of_tokens,
    tokens_of_values,
    tokens_of_x_packed_keys,
)

PARTITION = 256


def paged_attention_rocm(
    out: Tensor,
    exp_sums: Tensor,
    max_logits: Tensor,
    tmp_out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    scale: float,
    block_tables: Tensor,
    context_lens: Tensor,
    block_size: int,
    max_context_len: int,
    alibi_slopes: Tensor | None,
    kv_cache_dtype: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    fp8_out_scale: Tensor | None,
    partition_size: int,
    mtp: int,
    q_scale: Tensor | None,
) -> Tensor:
    """Writes and returns out ``[sequences, heads, D]``; values may be plain or shuffled, their rank tells which."""
    if mtp != 1 or fp8_out_scale is not None or q_scale is not None:
        raise NotImplementedError("the emulator has paged_attention_rocm for one query and 16-bit queries and results")
    refuse_dtype("query", query, torch.float16, torch.bfloat16)
    refuse_dtype("out", out, torch.float16, torch.bfloat16)
    num_sequences, num_heads, head_dim = block_tables.shape[0], query.shape[1], query.shape[2]
    refuse_unless(head_dim % 64 == 0, f"head sizes are multiples of 64 (16 for each of four waves), not {head_dim}")
    refuse_unless(num_heads % num_kv_heads == 0, f"{num_heads} heads over {num_kv_heads} KV heads")
    is_fp8 = key_cache.dtype == machine.fp8()
    refuse_unless(kv_cache_dtype in ("auto", "fp8", "fp8_e4m3"), f"kv_cache_dtype {kv_cache_dtype!r}")
    refuse_unless(is_fp8 == (kv_cache_dtype != "auto"), f"kv_cache_dtype {kv_cache_dtype!r} for {key_cache.dtype}")
    refuse_unless(is_fp8 or key_cache.dtype == query.dtype, f"query is {query.dtype}, the cache {key_cache.dtype}")
    detect_unless(value_cache.dtype == key_cache.dtype, f"values are {value_cache.dtype}, keys {key_cache.dtype}")
    check_x_packed_keys("key_cache", key_cache, head_dim)
    check_values("value_cache", value_cache, key_cache, head_dim)
    check_same_page_strides(key_cache, value_cache)
    detect_unless(
        num_kv_heads == key_cache.shape[1], f"num_kv_heads {num_kv_heads}, the cache has {key_cache.shape[1]}"
    )
    detect_unless(block_size == key_cache.shape[3], f"block_size {block_size}, pages have {key_cache.shape[3]}")
    detect_unless(partition_size == PARTITION, f"partition_size {partition_size}, the kernel has 256 compiled in")
    detect_unless(query[0].is_contiguous(), "query: only the stride between rows reaches the kernel")
    check_shape("out", out, *query.shape)
    check_contiguous("out", out)
    check_apart(out=out, query=query)
    for name, index in {"block_tables": block_tables, "context_lens": context_lens}.items():
        check_index(name, index)
        check_contiguous(name, index)
    lengths, table = ints(context_lens), ints(block_tables)
    detect_unless(len(lengths) == num_sequences == query.shape[0], "query, context_lens and block_tables disagree")
    detect_unless(
        max(lengths, default=0) <= max_context_len, f"max_context_len {max_context_len} for {max(lengths, default=0)}"
    )
    _spoil_partitions(exp_sums, max_logits, tmp_out, out, num_sequences * num_heads * -(-max_context_len // PARTITION))
    for index, length in enumerate(lengths):
        ids = page_ids("block_tables", table[index], length, block_size, key_cache.shape[0])
        keys = tokens_of_x_packed_keys(take(key_cache, ids))[:length]
        values = tokens_of_values(take(value_cache, ids))[:length]
        if is_fp8:
            keys = keys * _scale("k_scale", k_scale, key_cache, ids)[:length]
            values = values * _scale("v_scale", v_scale, key_cache, ids)[:length]
        bias = None
        if alibi_slopes is not None:
            check_dtype("alibi_slopes", alibi_slopes, torch.float32)
            bias = alibi_slopes[:, None, None] * (torch.arange(length) - length + 1)
        result, _ = attend(query[index : index + 1], keys, values, scale, visible(1, length, causal=True), bias=bias)
        out[index] = result[0].to(out.dtype)
    return out


def _scale(name: str, scale: Tensor | None, key_cache: Tensor, ids: list[int]) -> Tensor:
    """One for all, or one for each token of ``[pages, kv_heads, page_size]``."""
    detect_unless(scale is not None, f"an fp8 cache without {name}: the kernel reads at address 0")
    check_dtype(name, scale, torch.float32)
    pages, heads, page_size = key_cache.shape[0], key_cache.shape[1], key_cache.shape[3]
    if scale.numel() != pages * heads * page_size:
        detect_unless(scale.numel() == 1, f"{name} has {scale.numel()} numbers, the kernel reads the first")
        return scale.reshape(1, 1, 1).expand(len(ids) * page_size, 1, 1)
    return scales_of_tokens(take(scale.view(pages, heads, page_size), ids))


def _spoil_partitions(exp_sums: Tensor, max_logits: Tensor, tmp_out: Tensor, out: Tensor, num_rows: int) -> None:
    """The scratch is large enough and of the type that is written to it; its old content is gone."""
    for name, scratch in {"exp_sums": exp_sums, "max_logits": max_logits}.items():
        check_dtype(name, scratch, torch.float32)
        detect_unless(scratch.numel() >= num_rows, f"{name} has room for {scratch.numel()} partitions of {num_rows}")
    check_dtype("tmp_out", tmp_out, out.dtype)
    detect_unless(tmp_out.numel() >= num_rows * out.shape[-1], f"tmp_out has {tmp_out.numel()} of {num_rows} rows")
    for scratch in (exp_sums, max_logits, tmp_out):
        check_contiguous("scratch", scratch)
        check_apart(scratch=scratch, out=out)
        scratch.fill_(float("nan"))
