"""Kernels in Triton: in folders by family, and importable by their former flat names through a finder."""

from tests.aiter_emulator.semantics.flat_names import install

install(
    {
        "batched_gemm_bf16": "gemm.batched.batched_gemm_bf16",
        "fused_kv_cache": "fusions.fused_kv_cache",
        "unified_attention": "attention.unified_attention",
    }
)
