"""pa_fwd_asm: paged decode in assembly, for heads of 128, groups of up to 16 and the layouts that ASM reads."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .attend import attend, visible
from .checks import check_apart, check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .host import check_index, ints, longest, page_ids, starts_of, take
from .layouts import (
    check_same_page_strides,
    check_shuffled_values,
    check_x_packed_keys,
    scales_of_tokens,
    tokens_of_values,
    tokens_of_x_packed_keys,
)

HEAD_DIM = 128
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8", torch.uint8: "int8"}


def pa_fwd_asm(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    block_tables_stride0: int,
    max_qlen: int,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    out: Tensor | None,
    qo_indptr: Tensor | None,
    high_precision: int,
    *,
    says_head_dim: bool,
) -> Tensor:
    """Writes and returns out ``[queries, heads, 128]``; the scale of the logits is ``1 / sqrt(128)``, always.

    Args:
        says_head_dim: whether this release's host code looks at the head dim.
    """
    wanted = f"ASM PA only supports head_size=128, got {Q.shape[-1]}"
    (refuse_unless if says_head_dim else detect_unless)(Q.shape[-1] == HEAD_DIM, wanted)
    check_x_packed_keys("K", K, HEAD_DIM)
    check_shuffled_values("V", V, K, HEAD_DIM)
    check_same_page_strides(K, V)
    num_kv_heads, page_size = K.shape[1], K.shape[3]
    detect_unless(Q.shape[1] % num_kv_heads == 0, f"{Q.shape[1]} heads over {num_kv_heads} KV heads")
    several = qo_indptr is not None and max_qlen > 1
    _refuse_without_kernel(
        Q.dtype, K.dtype, Q.shape[1] // num_kv_heads, max_qlen if several else 0, high_precision, page_size
    )
    detect_unless(V.dtype == K.dtype, f"V is {V.dtype}, K {K.dtype}")
    detect_unless(Q[0].is_contiguous(), "Q: only the stride between rows reaches the kernel")
    out = torch.full(Q.shape, float("nan"), dtype=Q.dtype) if out is None else out
    check_shape("out_", out, *Q.shape)
    check_dtype("out_", out, Q.dtype)
    check_contiguous("out_", out)
    check_apart(out_=out, Q=Q)
    check_index("block_tables", block_tables)
    check_index("context_lens", context_lens)
    detect_unless(
        block_tables_stride0 == block_tables.stride(0),
        f"block_tables_stride0 is {block_tables_stride0}, the rows are {block_tables.stride(0)} apart",
    )
    lengths, table = ints(context_lens), ints(block_tables)
    starts = list(range(len(lengths) + 1))
    if several:
        starts = starts_of("qo_indptr", qo_indptr, Q.shape[0], len(lengths))
        detect_unless(longest(starts) <= max_qlen, f"max_qlen is {max_qlen}, a sequence has {longest(starts)} queries")
    detect_unless(starts[-1] == Q.shape[0], f"{Q.shape[0]} queries, the kernel computes {starts[-1]}")
    detect_unless(len(table) >= len(lengths), f"block_tables has {len(table)} rows for {len(lengths)} sequences")
    for index, length in enumerate(lengths):
        first, last = starts[index], starts[index + 1]
        detect_unless(length >= last - first or length == 0, f"{last - first} queries at {length} tokens of context")
        ids = page_ids("block_tables", table[index], length, page_size, K.shape[0])
        keys, values = tokens_of_x_packed_keys(take(K, ids))[:length], tokens_of_values(take(V, ids))[:length]
        if K.element_size() == 1:
            keys = keys * _scales("K_QScale", k_scales, K, ids)[:length]
            values = values * _scales("V_QScale", v_scales, K, ids)[:length]
        result, _ = attend(Q[first:last], keys, values, HEAD_DIM**-0.5, visible(last - first, length, causal=True))
        out[first:last] = result.to(out.dtype) if length else float("nan")
    return out


def _scales(name: str, scales: Tensor | None, K: Tensor, ids: list[int]) -> Tensor:
    """float32, one for each token and head: ``[pages, kv_heads, page_size]``."""
    detect_unless(scales is not None, f"a cache of {K.dtype} without {name}: the kernel reads at address 0")
    check_dtype(name, scales, torch.float32)
    check_shape(name, scales, K.shape[0], K.shape[1], K.shape[3])
    check_contiguous(name, scales)
    return scales_of_tokens(take(scales, ids))


def _refuse_without_kernel(
    q: torch.dtype, kv: torch.dtype, group: int, queries: int, precision: int, page_size: int
) -> None:
    """The kernels of `hsa/gfx942/pa` and `hsa/gfx950/pa`, whose names the host code searches."""
    kv_name = "fp8" if kv == machine.fp8() else NAMES.get(kv)
    refuse_unless(q in (torch.float16, torch.bfloat16), f"unsupport Q dtype: {q}")
    refuse_unless(kv_name is not None, f"unsupport K dtype: {kv}")
    plain, heads = kv == q, 8 if group <= 8 else 16
    exists = page_size == 16 and group <= 16 and (plain or kv_name in ("fp8", "int8"))
    if queries:
        exists = exists and precision < 2 and not (plain and heads == 16)
    elif precision >= 2:
        exists = exists and kv_name == "fp8" and heads == 8
    long_pages = machine.arch() == "gfx942" and (page_size, kv_name, q, group) == (1024, "fp8", torch.bfloat16, 10)
    exists = exists or (long_pages and queries in (0, 2, 3, 4) and precision < 2)
    wanted = f"q_type:{q} kv_type:{kv_name} gqa:{group} mtp:{queries} hp:{precision} block_size:{page_size}"
    refuse_unless(exists, f"cannot get heuristic kernel! {wanted}")
