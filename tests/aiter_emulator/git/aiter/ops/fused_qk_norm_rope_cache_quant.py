"""Norms, rotary embedding and cache write in one kernel."""

from torch import Tensor

from tests.aiter_emulator.semantics import fused_cache

from ..jit.core import compile_ops


@compile_ops("module_fused_qk_norm_rope_cache_quant_shuffle")
def fused_qk_norm_rope_cache_quant_shuffle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    qw: Tensor,
    kw: Tensor,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    pos_ids: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    fused_cache.qk_norm_rope_cache(
        q,
        k,
        v,
        (num_heads_q, num_heads_k, num_heads_v),
        head_dim,
        eps,
        (qw, kw),
        cos_sin_cache,
        is_neox_style,
        pos_ids,
        (k_cache, v_cache),
        slot_mapping,
        kv_cache_dtype,
        (k_scale, v_scale),
    )
