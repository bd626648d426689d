"""pa_decode_gluon: paged decode for up to four queries, with sinks and windows."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .attend import attend, visible
from .checks import check_apart, check_dtype, check_rows, check_shape, detect_unless
from .host import ints, page_ids, take
from .layouts import check_values, check_x_packed_keys, scales_of_tokens, tokens_of_values, tokens_of_x_packed_keys

PAGE_SIZES = (16, 64, 1024)
PARTITION = 256


def recommended_splits(num_sequences: int, num_kv_heads: int, split_kv_blocks: int) -> int:
    """How many partitions fill the GPU, two workgroups for each CU and eight at most."""
    workgroups = num_sequences * num_kv_heads * split_kv_blocks
    return min(-(-machine.cu_num() * 2 // workgroups) * split_kv_blocks, 8)


def pa_decode_gluon(
    output: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    context_lengths: Tensor,
    block_tables: Tensor,
    softmax_scale: float,
    query_length: int,
    max_context_partition_num: int,
    context_partition_size: int,
    query_scale: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    exp_sums: Tensor | None,
    max_logits: Tensor | None,
    temporary_output: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    sliding_window: int,
    ps: bool,
) -> None:
    """Writes output ``[sequences * query_length, heads, D]``; a window of 0 is none, else it counts the query, too."""
    assert query_length <= 4, f"query_length == {query_length} exceeds maximum of 4"
    types = (machine.fp8(), torch.bfloat16, torch.float16)
    for name, tensor in {"query": query, "key_cache": key_cache, "value_cache": value_cache}.items():
        assert tensor.dtype in types, f"{name} tensor only support dtype in {types}, but got {tensor.dtype}"
    assert output.dtype in types[1:], f"output tensor only support bf16 and fp16, but got {output.dtype}"
    num_kv_heads, page_size, head_dim = key_cache.shape[1], key_cache.shape[-2], query.shape[-1]
    group = query.shape[1] // num_kv_heads
    assert query_length * group <= 64, f"equivalent_query_group_size={query_length * group} exceeds maximum of 64"
    assert output.dim() == 3, f"Expected 3D output tensor, but got shape {output.shape}"
    assert query.dim() == 3, f"Expected 3D query tensor, but got shape {query.shape}"
    assert key_cache.dim() == 5, f"Expected 5D key_cache tensor, but got shape {key_cache.shape}"
    assert page_size in PAGE_SIZES, f"kv_block_size must be one of {PAGE_SIZES}, not {page_size}"
    assert context_partition_size == PARTITION, f"context_partition_size must be 256, got {context_partition_size}"
    if alibi_slopes is not None or query.dtype == machine.fp8() or query_scale is not None:
        raise NotImplementedError("the emulator has pa_decode_gluon for 16-bit queries without ALiBi")
    detect_unless(group * num_kv_heads == query.shape[1], f"{query.shape[1]} heads over {num_kv_heads} KV heads")
    check_x_packed_keys("key_cache", key_cache, head_dim)
    check_values("value_cache", value_cache, key_cache, head_dim)
    detect_unless(value_cache.dtype == key_cache.dtype, f"values are {value_cache.dtype}, keys {key_cache.dtype}")
    check_shape("output", output, *query.shape)
    check_rows("query", query)
    check_rows("output", output)
    check_apart(output=output, query=query)
    if sinks is not None:
        detect_unless(sinks.numel() == query.shape[1], f"{sinks.numel()} sinks for {query.shape[1]} heads")
    lengths, table = ints(context_lengths), ints(block_tables)
    check_dtype("context_lengths", context_lengths, torch.int32)
    check_dtype("block_tables", block_tables, torch.int32)
    num_sequences = query.shape[0] // query_length
    detect_unless(num_sequences * query_length == query.shape[0], f"{query.shape[0]} rows, {query_length} a sequence")
    detect_unless(
        len(lengths) == num_sequences and len(table) >= num_sequences,
        f"{len(lengths)} lengths, {num_sequences} sequences",
    )
    needed = -(-max(lengths, default=0) // PARTITION)
    detect_unless(ps or max_context_partition_num >= needed, f"{max_context_partition_num} partitions of {needed}")
    rows = (num_sequences, num_kv_heads, max_context_partition_num, query_length * group)
    _spoil({"exp_sums": exp_sums, "max_logits": max_logits}, rows, output)
    _spoil({"temporary_output": temporary_output}, (*rows, head_dim), output)
    for index, length in enumerate(lengths):
        ids = page_ids("block_tables", table[index], length, page_size, key_cache.shape[0])
        keys = tokens_of_x_packed_keys(take(key_cache, ids))[:length]
        values = tokens_of_values(take(value_cache, ids))[:length]
        if key_cache.dtype == machine.fp8() and key_scale is not None and value_scale is not None:
            keys = keys * _scale("key_scale", key_scale, value_scale, key_cache, ids)[:length]
            values = values * _scale("value_scale", value_scale, key_scale, key_cache, ids)[:length]
        rows_of = slice(index * query_length, (index + 1) * query_length)
        seen = visible(query_length, length, causal=True, left=sliding_window - 1)
        output[rows_of] = attend(query[rows_of], keys, values, softmax_scale, seen, sinks=sinks)[0].to(output.dtype)


def _scale(name: str, scale: Tensor, other: Tensor, key_cache: Tensor, ids: list[int]) -> Tensor:
    """One for all, or ``[pages, kv_heads, page_size, 1]``."""
    assert scale.dtype == torch.float32, f"{name} tensor only support dtype float32, but got {scale.dtype}"
    assert scale.shape == other.shape, "Key and value scales must have same shape"
    pages, heads, page_size = key_cache.shape[0], key_cache.shape[1], key_cache.shape[3]
    if scale.numel() == 1:
        return scale.reshape(1, 1, 1).expand(len(ids) * page_size, 1, 1)
    assert scale.dim() == 4, f"Expected 4D {name} tensor, but got shape {scale.shape}"
    assert scale.shape[-1] == 1, f"Expected {name}.shape[-1] == 1, but got {scale.shape[-1]}"
    check_shape(name, scale, pages, heads, page_size, 1)
    return scales_of_tokens(take(scale[..., 0], ids))


def _spoil(scratch: dict[str, Tensor | None], shape: tuple[int, ...], output: Tensor) -> None:
    """Partitions are written there: what was before is gone."""
    for name, tensor in scratch.items():
        if tensor is not None:
            detect_unless(
                all(have >= want for have, want in zip(tensor.shape, shape, strict=True)), f"{name} is too small"
            )
            check_apart(scratch=tensor, output=output)
            tensor.fill_(float("nan"))
