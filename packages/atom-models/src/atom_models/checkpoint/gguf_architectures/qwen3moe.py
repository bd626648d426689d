"""`qwen3moe`: Qwen3 with experts in every layer."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, EXPERTS, HEAD_NORMS, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader


def _config(header: GGUFHeader) -> dict[str, Any]:
    header.require_scoring("softmax")
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **header.numbers(
            num_experts="expert_count",
            num_experts_per_tok="expert_used_count",
            moe_intermediate_size="expert_feed_forward_length",
        ),
        # The converter leaves it out: all published models have it, and llama.cpp always does it.
        "norm_topk_prob": bool(header.get("expert_weights_norm", True)),
    }


QWEN3MOE = GGUFArchitecture(config=_config, tensors={**ATTENTION, **HEAD_NORMS, **EXPERTS})
