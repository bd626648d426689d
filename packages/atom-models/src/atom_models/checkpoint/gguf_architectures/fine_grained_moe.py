"""What files of DeepSeek, GLM and relatives say about their experts; and `glm4moe`: GLM-4.5 and its successors."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import (
    ATTENTION,
    CORRECTION_BIAS,
    EXPERTS,
    HEAD_NORMS,
    MLP,
    SHARED_EXPERTS,
    GGUFArchitecture,
)
from atom_models.checkpoint.gguf_header import GGUFHeader


def expert_fields(header: GGUFHeader, *, normalized: bool) -> dict[str, Any]:
    """Fields of `config.json`; `normalized` is `norm_topk_prob` where the header is silent.

    Files of before 2025-09 have no groups of experts; then there is one, as for llama.cpp.
    """
    return {
        **header.numbers(
            n_routed_experts="expert_count",
            num_experts_per_tok="expert_used_count",
            moe_intermediate_size="expert_feed_forward_length",
        ),
        "n_shared_experts": header.number("expert_shared_count", 0),
        "n_group": header.number("expert_group_count", 1),
        "topk_group": header.number("expert_group_used_count", 1),
        "first_k_dense_replace": header.number("leading_dense_block_count", 0),
        "routed_scaling_factor": header.number("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(header.get("expert_weights_norm", normalized)),
    }


GLM4MOE = GGUFArchitecture(
    model_class="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    tensors={
        **ATTENTION,
        **HEAD_NORMS,
        **MLP,
        **EXPERTS,
        **SHARED_EXPERTS,
        **CORRECTION_BIAS,
        "post_attention_norm": "post_attention_layernorm",
    },
    scoring="sigmoid",
    fields=lambda header: {
        "use_qk_norm": header.has("attn_q_norm.weight"),
        **expert_fields(header, normalized=True),
    },
)
