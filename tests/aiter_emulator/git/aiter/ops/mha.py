"""Attention of queries of any length."""

from tests.aiter_emulator.semantics.batch_prefill import mha_batch_prefill
from tests.aiter_emulator.semantics.binding import emulated
from tests.aiter_emulator.semantics.varlen import flash_attn_varlen, refuse_training_options


@emulated
def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    min_seqlen_q=0,
    dropout_p=0.0,
    softmax_scale=None,
    logits_soft_cap=0.0,
    causal=False,
    window_size=(-1, -1, 0),
    bias=None,
    alibi_slopes=None,
    deterministic=False,
    return_lse=False,
    return_attn_probs=False,
    how_v3_bf16_cvt=1,
    block_table=None,
    out=None,
    cu_seqlens_q_padded=None,
    cu_seqlens_k_padded=None,
    sink_ptr=None,
):
    refuse_training_options(dropout_p, bias, return_attn_probs, cu_seqlens_q_padded, cu_seqlens_k_padded, window_size)
    return flash_attn_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        min_seqlen_q=min_seqlen_q,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        causal=causal,
        window=window_size,
        alibi_slopes=alibi_slopes,
        return_lse=return_lse,
        block_table=block_table,
        out=out,
        sinks=sink_ptr,
    )


@emulated
def mha_batch_prefill_func(
    q,
    k,
    v,
    cu_seqlens_q,
    kv_indptr,
    kv_page_indices,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    logits_soft_cap=0.0,
    causal=False,
    window_size=(-1, -1),
    alibi_slopes=None,
    deterministic=False,
    return_lse=False,
    return_attn_probs=False,
    out=None,
    kv_last_page_lens=None,
    block_table=None,
    seqlen_k=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    kv_block_descale=None,
    sink_ptr=None,
    sink_size: int = 0,
):
    refuse_training_options(dropout_p, None, return_attn_probs, None, None)
    if any(scale is not None for scale in (q_descale, k_descale, v_descale, kv_block_descale)) or sink_size:
        raise NotImplementedError("the emulator has mha_batch_prefill_func in 16 bits")
    return mha_batch_prefill(
        q,
        k,
        v,
        cu_seqlens_q,
        kv_indptr,
        kv_page_indices,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        causal=causal,
        window=window_size,
        alibi_slopes=alibi_slopes,
        return_lse=return_lse,
        out=out,
        kv_last_page_lens=kv_last_page_lens,
        block_table=block_table,
        seqlen_k=seqlen_k,
        sinks=sink_ptr,
    )
