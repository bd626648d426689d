"""Paged decode, and the metadata of latent attention."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import asm_decode, mla_work, rocm_decode, work
from tests.aiter_emulator.semantics.binding import emulated
from tests.aiter_emulator.semantics.work import Buffers

from ..jit.core import compile_ops


@compile_ops("module_attention_asm")
def pa_fwd_asm(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    block_tables_stride0: int,
    max_qlen: int = 1,
    K_QScale: Tensor | None = None,
    V_QScale: Tensor | None = None,
    out_: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    high_precision: int | None = 1,
    kernelName: str | None = None,
) -> Tensor:
    return asm_decode.pa_fwd_asm(
        Q,
        K,
        V,
        block_tables,
        context_lens,
        block_tables_stride0,
        max_qlen,
        K_QScale,
        V_QScale,
        out_,
        qo_indptr,
        high_precision,
        says_head_dim=False,
    )


@emulated
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
    k_scale: Tensor,
    v_scale: Tensor,
    fp8_out_scale: Tensor | None = None,
    partition_size: int = 256,
    mtp: int = 1,
    q_scale: Tensor | None = None,
) -> Tensor:
    return rocm_decode.paged_attention_rocm(
        out,
        exp_sums,
        max_logits,
        tmp_out,
        query,
        key_cache,
        value_cache,
        num_kv_heads,
        scale,
        block_tables,
        context_lens,
        block_size,
        max_context_len,
        alibi_slopes,
        kv_cache_dtype,
        k_scale,
        v_scale,
        fp8_out_scale,
        partition_size,
        mtp,
        q_scale,
    )


def get_mla_metadata_info_v1(
    batch_size: int,
    max_seqlen_qo: int,
    num_head_qo: int,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
    is_sparse: int,
    fast_mode: bool = True,
):
    if is_sparse:
        raise NotImplementedError("the emulator has metadata of dense attention")
    return mla_work.pypi_buffer_shapes(batch_size, max_seqlen_qo, num_head_qo, kv_dtype, fast_mode)


@compile_ops("module_mla_metadata")
def get_mla_metadata_v1(
    seqlens_qo_indptr: Tensor,
    seqlens_kv_indptr: Tensor,
    num_heads_per_head_k: int,
    num_heads_k: int,
    is_causal: bool,
    work_metadata_ptrs: Tensor,
    work_indptr: Tensor,
    work_info: Tensor,
    reduce_indptr: Tensor,
    reduce_final_map: Tensor,
    reduce_partial_map: Tensor,
    kv_granularity: int = 16,
    max_seqlen_qo: int = -1,
    uni_seqlen_qo: int = -1,
    fast_mode: bool = True,
    topk: int = -1,
    max_split_per_batch: int = -1,
) -> None:
    mla_work.fill(
        Buffers(work_metadata_ptrs, work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map),
        seqlens_qo_indptr,
        seqlens_kv_indptr,
        None,
        num_heads_per_head_k,
        num_heads_k,
        is_causal,
        release="pypi",
        page_size=1,
        kv_granularity=kv_granularity,
        max_seqlen_qo=max_seqlen_qo,
        uni_seqlen_qo=uni_seqlen_qo,
        topk=topk,
        max_split_per_batch=max_split_per_batch,
        q=torch.bfloat16,
        kv=torch.bfloat16,
    )


@compile_ops("module_mla_reduce")
def mla_reduce_v1(
    partial_output: Tensor,
    partial_lse: Tensor,
    reduce_indptr: Tensor,
    reduce_final_map: Tensor | None,
    reduce_partial_map: Tensor,
    final_output: Tensor,
    final_lse: Tensor | None = None,
) -> None:
    work.reduce_partials(
        partial_output, partial_lse, reduce_indptr, reduce_final_map, reduce_partial_map, final_output, final_lse
    )
