"""Every function of AITER that an adapter calls: where it is, and which of its parameters we rely on.

Adapters call through `library.Library.bind`, which knows no parameter that is not in here; so holding this table
to AITER's sources holds every call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AiterFunction:
    """Attributes:
    git, pypi: "module:object" by release, the object perhaps a method of the module's only instance; None where
        the release has none, or one that takes something else.
    uses: parameters that we pass wherever we call it; without one of them the function is of no use to us.
    newer: parameters that some releases lack, with the value that leaves things as those releases do them.
    renamed: other names of a parameter, in some releases.
    keywords: the function is plain Python, so arguments after a gap may go by keyword. Elsewhere only positions are
        safe, since names in AITER's C++ differ from those in its Python.
    """

    git: str | None
    pypi: str | None
    uses: tuple[str, ...] = ()
    newer: Mapping[str, object] = field(default_factory=dict)
    renamed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keywords: bool = False

    def path_in(self, release: str) -> str | None:
        """Its "module:object" in a release."""
        return self.git if release == "git" else self.pypi

    def spelled(self, name: str, known: Collection[str]) -> str | None:
        """The name of a parameter in a release whose parameters are `known`; None where it lacks this one."""
        return next((other for other in (name, *self.renamed.get(name, ())) if other in known), None)


def _both(path: str, uses: str, **options: object) -> AiterFunction:
    """Same module in both releases; `uses` is separated by blanks."""
    return AiterFunction(path, path, tuple(uses.split()), **options)  # type: ignore[arg-type]


def _git(path: str, uses: str = "", **options: object) -> AiterFunction:
    """Only in sources from git."""
    return AiterFunction(path, None, tuple(uses.split()), **options)  # type: ignore[arg-type]


def _triton(folder: str, path: str, uses: str = "", **options: object) -> AiterFunction:
    """AITER's own Triton kernels: in folders on git, flat on PyPI."""
    root = "aiter.ops.triton"
    return AiterFunction(f"{root}.{folder}.{path}", f"{root}.{path}", tuple(uses.split()), **options)  # type: ignore[arg-type]


_PAGED_WRITE = "key value key_cache value_cache slot_mapping"
_NEW_OUT = "out input"
_RANKS = "aiter.ops.custom_all_reduce"
_GEMM_A8W8 = "XQ WQ x_scale w_scale"

FUNCTIONS: dict[str, AiterFunction] = {
    # Dense products.
    "shuffle_weight": _both("aiter.ops.shuffle:shuffle_weight", "x layout", newer={"use_int4": False}),
    "pack_int8_to_packed_int4": _git("aiter.ops.shuffle:pack_int8_to_packed_int4", "x_shuf_i8"),
    "shuffle_scale_for_int4": _git("aiter.ops.shuffle:shuffle_scale_for_int4", "scale group_size"),
    "tgemm.mm": _both("aiter.tuned_gemm:tgemm.mm", "inp weights bias otype"),
    "batched_gemm_bf16_CK": _both("aiter.ops.batched_gemm_op_bf16:batched_gemm_bf16_CK", "XQ WQ"),
    "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant": _triton(
        "gemm.batched",
        ":".join(["batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"] * 2),
        "X WQ w_scale group_size dtype transpose_bm transpose_bm_in",
        keywords=True,
    ),
    "batched_gemm_a16wfp4": _git(
        "aiter.ops.triton.gemm.batched.batched_gemm_a16wfp4:batched_gemm_a16wfp4",
        "x w w_scales dtype transpose_bm prequant",
        keywords=True,
    ),
    # Sources from git have it too, as another name of the one before.
    "batched_gemm_afp4wfp4_pre_quant": AiterFunction(
        None,
        "aiter.ops.triton.batched_gemm_afp4wfp4_pre_quant:batched_gemm_afp4wfp4_pre_quant",
        ("x", "w", "w_scales", "dtype", "y"),
        keywords=True,
    ),
    # Quantized products, and the quantizers of their rows.
    "gemm_a8w8": _both("aiter.ops.gemm_op_a8w8:gemm_a8w8", f"{_GEMM_A8W8} bias dtype"),
    "gemm_a8w8_bpreshuffle": _both("aiter.ops.gemm_op_a8w8:gemm_a8w8_bpreshuffle", f"{_GEMM_A8W8} bias dtype"),
    "gemm_a8w8_blockscale": _both("aiter.ops.gemm_op_a8w8:gemm_a8w8_blockscale", f"{_GEMM_A8W8} dtype"),
    "gemm_a8w8_blockscale_bpreshuffle": _both(
        "aiter.ops.gemm_op_a8w8:gemm_a8w8_blockscale_bpreshuffle", f"{_GEMM_A8W8} dtype"
    ),
    # Until v0.1.9 the caller allocated the result.
    "gemm_a4w4": _both(
        "aiter.ops.gemm_op_a4w4:gemm_a4w4",
        "A B A_scale B_scale bpreshuffle",
        newer={"out": None, "dtype": None},
    ),
    "gemm_a16wfp4": _git("aiter.ops.triton.gemm.basic.gemm_a16wfp4:gemm_a16wfp4", "x w w_scales dtype", keywords=True),
    "per_token_quant_hip": _both("aiter.ops.quant:per_token_quant_hip", "x quant_dtype"),
    "per_group_quant_hip": _both("aiter.ops.quant:per_group_quant_hip", "x quant_dtype group_size transpose_scale"),
    "per_1x32_f4_quant_hip": _both("aiter.ops.quant:per_1x32_f4_quant_hip", "x quant_dtype shuffle"),
    "e8m0_shuffle": _both("aiter.utility.fp4_utils:e8m0_shuffle", "scale"),
    # Norms, and activations behind them, that round their rows in the same kernel.
    "rmsnorm2d_fwd_with_dynamicquant": _both(
        "aiter.ops.rmsnorm:rmsnorm2d_fwd_with_dynamicquant",
        "out input yscale weight epsilon",
        newer={"group_size": 0, "shuffle_scale": False},
    ),
    "rmsnorm2d_fwd_with_add_dynamicquant": _both(
        "aiter.ops.rmsnorm:rmsnorm2d_fwd_with_add_dynamicquant",
        "out input residual_in residual_out yscale weight epsilon",
        newer={"group_size": 0, "shuffle_scale": False},
    ),
    "silu_and_mul_quant": _git(
        "aiter.ops.activation:silu_and_mul_quant", "out input scale group_size shuffle_scale", newer={"limit": 0.0}
    ),
    # Norms.
    "rmsnorm2d_fwd": _both("aiter.ops.rmsnorm:rmsnorm2d_fwd", "input weight epsilon"),
    "rmsnorm2d_fwd_with_add": _both(
        "aiter.ops.rmsnorm:rmsnorm2d_fwd_with_add",
        "out input residual_in residual_out weight epsilon",
        newer={"gemma_norm": False},
    ),
    "layernorm2d_fwd": _both("aiter.ops.norm:layernorm2d_fwd", "input weight bias epsilon"),
    # Activations: all with gate and up as halves of a row.
    "silu_and_mul": _both("aiter.ops.activation:silu_and_mul", _NEW_OUT),
    "gelu_and_mul": _both("aiter.ops.activation:gelu_and_mul", _NEW_OUT),
    "gelu_tanh_and_mul": _both("aiter.ops.activation:gelu_tanh_and_mul", _NEW_OUT),
    "swiglu_and_mul": _git("aiter.ops.activation:swiglu_and_mul", _NEW_OUT),
    # Rotation, alone and together with norms and the write into the cache.
    "rope_cached_positions_2c_fwd_inplace": _both(
        "aiter.ops.rope:rope_cached_positions_2c_fwd_inplace",
        "input_x input_y cos sin positions rotate_style reuse_freqs_front_part nope_first",
    ),
    "fused_qk_norm_rope_cache_quant_shuffle": _git(
        "aiter.ops.fused_qk_norm_rope_cache_quant:fused_qk_norm_rope_cache_quant_shuffle",
        "q k v num_heads_q num_heads_k num_heads_v head_dim eps qw kw cos_sin_cache is_neox_style pos_ids k_cache "
        "v_cache slot_mapping kv_cache_dtype k_scale v_scale",
    ),
    "fused_qk_rope_reshape_and_cache": _triton(
        "fusions",
        "fused_kv_cache:fused_qk_rope_reshape_and_cache",
        "q k v key_cache value_cache slot_mapping pos cos sin k_scale v_scale is_neox flash_layout q_out k_out "
        "output_zeros",
        keywords=True,
    ),
    "fused_qk_rope_cat_and_cache_mla": _triton(
        "fusions",
        "fused_kv_cache:fused_qk_rope_cat_and_cache_mla",
        "q_nope q_pe k_nope k_pe kv_cache slot_mapping pos cos sin k_scale is_neox q_out",
        keywords=True,
    ),
    "fused_qk_rope_concat_and_cache_mla": _git(
        "aiter.ops.cache:fused_qk_rope_concat_and_cache_mla",
        "q_nope q_pe kv_c k_pe kv_cache q_out slot_mapping k_scale q_scale positions cos_cache sin_cache is_neox "
        "is_nope_first",
        newer={"compute_all_q_rope": False},
    ),
    # The cache.
    "reshape_and_cache": _both(
        "aiter.ops.cache:reshape_and_cache", f"{_PAGED_WRITE} kv_cache_dtype k_scale v_scale asm_layout"
    ),
    "reshape_and_cache_flash": _both(
        "aiter.ops.cache:reshape_and_cache_flash", f"{_PAGED_WRITE} kv_cache_dtype k_scale v_scale"
    ),
    "reshape_and_cache_with_pertoken_quant": _both(
        "aiter.ops.cache:reshape_and_cache_with_pertoken_quant",
        "key value key_cache value_cache k_dequant_scales v_dequant_scales slot_mapping asm_layout",
    ),
    "concat_and_cache_mla": _both(
        "aiter.ops.cache:concat_and_cache_mla", "kv_c k_pe kv_cache slot_mapping kv_cache_dtype scale"
    ),
    # Attention.
    "flash_attn_varlen_func": _both(
        "aiter.ops.mha:flash_attn_varlen_func",
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k softmax_scale logits_soft_cap causal window_size "
        "return_lse out",
        newer={"sink_ptr": None},
        keywords=True,
    ),
    "mha_batch_prefill_func": _both(
        "aiter.ops.mha:mha_batch_prefill_func",
        "q k v cu_seqlens_q kv_indptr kv_page_indices max_seqlen_q max_seqlen_k softmax_scale logits_soft_cap causal "
        "window_size out",
        newer={"kv_last_page_lens": None},
        keywords=True,
    ),
    "pa_fwd_asm": _both(
        "aiter.ops.attention:pa_fwd_asm",
        "Q K V block_tables context_lens block_tables_stride0 max_qlen K_QScale V_QScale out_ qo_indptr",
    ),
    "unified_attention": _triton(
        "attention",
        "unified_attention:unified_attention",
        "q k v out cu_seqlens_q max_seqlen_q seqused_k max_seqlen_k softmax_scale causal window_size block_table "
        "softcap q_descale k_descale v_descale sinks",
        keywords=True,
    ),
    # Latent attention.
    "mla_decode_fwd": _both(
        "aiter.mla:mla_decode_fwd",
        "q kv_buffer o qo_indptr kv_indptr kv_indices kv_last_page_lens max_seqlen_q sm_scale "
        "work_meta_data work_indptr work_info_set reduce_indptr reduce_final_map reduce_partial_map q_scale kv_scale",
        keywords=True,
    ),
    "mla_prefill_fwd": _both(
        "aiter.mla:mla_prefill_fwd",
        "q kv_buffer o qo_indptr kv_indptr kv_indices kv_last_page_lens max_seqlen_q sm_scale",
        keywords=True,
    ),
    "get_mla_metadata_info_v1": _both(
        "aiter.ops.attention:get_mla_metadata_info_v1",
        "batch_size max_seqlen_qo num_head_qo q_dtype kv_dtype is_sparse fast_mode",
        keywords=True,
    ),
    "get_mla_metadata_v1": _both(
        "aiter.ops.attention:get_mla_metadata_v1",
        "seqlens_qo_indptr seqlens_kv_indptr num_heads_per_head_k num_heads_k is_causal work_metadata_ptrs "
        "work_info_set work_indptr reduce_indptr reduce_final_map reduce_partial_map kv_granularity max_seqlen_qo "
        "uni_seqlen_qo fast_mode",
        newer={"kv_last_page_lens": None, "dtype_q": None, "dtype_kv": None},
        renamed={"work_info_set": ("work_info",)},
        keywords=True,
    ),
    # Sums over ranks. Those of the release on PyPI take tensors in the place of addresses.
    "meta_size": _git(f"{_RANKS}:meta_size"),
    "allocate_meta_buffer": _git(f"{_RANKS}:allocate_meta_buffer", "size"),
    "get_meta_buffer_ipc_handle": _git(f"{_RANKS}:get_meta_buffer_ipc_handle", "inp_ptr out_handle_ptr"),
    "init_custom_ar": _git(
        f"{_RANKS}:init_custom_ar",
        "meta_ptr rank_data_ptr rank_data_sz ipc_handle_ptrs offsets rank fully_connected",
    ),
    "register_input_buffer": _git(f"{_RANKS}:register_input_buffer", "_fa self_ptr ipc_handle_ptrs offsets"),
    "all_reduce": _git(f"{_RANKS}:all_reduce", "_fa inp out use_new open_fp8_quant reg_inp_ptr reg_inp_bytes"),
    "fused_allreduce_rmsnorm": _git(
        f"{_RANKS}:fused_allreduce_rmsnorm",
        "_fa inp res_inp res_out out w eps reg_ptr reg_bytes use_1stage",
        newer={"gemma_norm": False},
    ),
    "fused_allreduce_rmsnorm_quant": _git(
        f"{_RANKS}:fused_allreduce_rmsnorm_quant",
        "_fa inp res_inp res_out out scale_out w eps reg_ptr reg_bytes use_1stage",
        newer={"gemma_norm": False},
    ),
    "fused_allreduce_rmsnorm_quant_per_group": _git(
        f"{_RANKS}:fused_allreduce_rmsnorm_quant_per_group",
        "_fa inp res_inp res_out out scale_out w eps group_size reg_ptr reg_bytes use_1stage",
        newer={"transpose_scale": False},
    ),
    # Experts.
    "topk_softmax": _both(
        "aiter.ops.moe_op:topk_softmax",
        "topk_weights topk_indices token_expert_indices gating_output need_renorm",
    ),
    "biased_grouped_topk": _both(
        "aiter.ops.topk:biased_grouped_topk",
        "gating_output correction_bias topk_weights topk_ids num_expert_group topk_group need_renorm "
        "routed_scaling_factor",
    ),
    "grouped_topk": _both(
        "aiter.ops.topk:grouped_topk",
        "gating_output topk_weights topk_ids num_expert_group topk_group need_renorm is_softmax routed_scaling_factor",
    ),
    "fused_moe": _both(
        "aiter.fused_moe:fused_moe",
        "hidden_states w1 w2 topk_weight topk_ids expert_mask activation quant_type w1_scale w2_scale",
        keywords=True,
    ),
}
