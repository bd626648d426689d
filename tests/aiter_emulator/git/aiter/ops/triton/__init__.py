"""Kernels in Triton: in folders by family, and importable by their former flat names through a finder."""

from tests.aiter_emulator.semantics.flat_names import install

_A8W8 = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"

install(
    {
        "batched_gemm_a16wfp4": "gemm.batched.batched_gemm_a16wfp4",
        _A8W8: f"gemm.batched.{_A8W8}",
        "batched_gemm_bf16": "gemm.batched.batched_gemm_bf16",
        "gemm_a16wfp4": "gemm.basic.gemm_a16wfp4",
        "fused_kv_cache": "fusions.fused_kv_cache",
        "unified_attention": "attention.unified_attention",
    }
)
