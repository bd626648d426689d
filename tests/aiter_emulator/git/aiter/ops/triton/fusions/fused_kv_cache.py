"""Rotary embedding and cache write in Triton."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import fused_cache_triton
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def fused_qk_rope_cat_and_cache_mla(
    q_nope: Tensor,
    q_pe: Tensor,
    k_nope: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_scale: Tensor,
    is_neox: bool,
    num_decode_toks_for_zeros: int = 0,
    apply_scale: bool = True,
    q_out: Tensor | None = None,
    decode_q_pe_out: Tensor | None = None,
    k_pe_out: Tensor | None = None,
    q_out_dtype: torch.dtype | None = None,
    shuffled_kv_cache: bool = False,
    upcast_operand: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if shuffled_kv_cache:
        raise NotImplementedError("the emulator has the plain cache of MLA")
    return fused_cache_triton.qk_rope_cat_cache_mla(
        q_nope,
        q_pe,
        k_nope,
        k_pe,
        kv_cache,
        slot_mapping,
        pos,
        cos,
        sin,
        k_scale if apply_scale else None,
        is_neox,
        num_decode_toks_for_zeros,
        q_out,
        decode_q_pe_out,
        k_pe_out,
        q_out_dtype,
    )


@emulated
def fused_qk_rope_reshape_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    pos: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool,
    flash_layout: bool,
    apply_scale: bool = True,
    offs: Tensor | None = None,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
    output_zeros: bool = True,
    zeros_out: Tensor | None = None,
    upcast_operand: bool = False,
):
    scales = (k_scale, v_scale) if apply_scale else (None, None)
    if zeros_out is None and output_zeros:
        zeros_out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return fused_cache_triton.qk_rope_reshape_cache(
        q,
        k,
        v,
        key_cache,
        value_cache,
        slot_mapping,
        pos,
        cos,
        sin,
        scales,
        is_neox,
        flash_layout,
        offs,
        q_out,
        k_out,
        zeros_out,
    )
