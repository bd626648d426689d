"""`llama`: Llama and Mistral; with experts it is Mixtral. A sliding window is not written, here or by llama.cpp."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import (
    ATTENTION,
    BLOCK_SPARSE_EXPERTS,
    MLP,
    GGUFArchitecture,
)
from atom_models.checkpoint.gguf_header import GGUFHeader


def _fields(header: GGUFHeader) -> dict[str, Any]:
    if not header.get("expert_count"):
        return {"mlp_bias": header.has("ffn_up.bias")}
    header.require_scoring("softmax")
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        **header.numbers(num_local_experts="expert_count", num_experts_per_tok="expert_used_count"),
    }


LLAMA = GGUFArchitecture(
    model_class="LlamaForCausalLM",
    model_type="llama",
    tensors={
        **ATTENTION,
        **MLP,
        **BLOCK_SPARSE_EXPERTS,
        # Files of before 2024-04 hold each expert by itself.
        **{f"ffn_{part}.{{expert}}": BLOCK_SPARSE_EXPERTS[f"ffn_{part}_exps"] for part in ("gate", "up", "down")},
    },
    fields=_fields,
    permutes_heads=True,
)
