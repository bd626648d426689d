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
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
):
    assert q_descale is None, "Q scales not supported"
    if output_scale is not None or qq_bias is not None:
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
        decode_tile_is_page=True,
    )
