"""Prefill and decode over a paged cache, in one kernel."""

from tests.aiter_emulator.semantics import unified
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    q_scales=None,
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
    shuffled_kv_cache: bool = False,
    skip_reduce: bool = False,
):
    if q_descale is not None or q_scales is not None or output_scale is not None or qq_bias is not None or skip_reduce:
        raise NotImplementedError("the emulator has unified_attention for 16-bit queries and results")
    unified.unified_attention(
        q,
        k,
        v,
        out,
        cu_seqlens_q,
        max_seqlen_q,
        seqused_k,
        max_seqlen_k,
        softmax_scale,
        causal,
        window_size,
        block_table,
        softcap,
        k_descale,
        v_descale,
        alibi_slopes,
        sinks,
        shuffled=shuffled_kv_cache,
    )
    return out
