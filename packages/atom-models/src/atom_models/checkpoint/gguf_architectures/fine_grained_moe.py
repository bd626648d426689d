"""What files of DeepSeek, GLM and relatives say about their experts."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from atom_models.checkpoint.gguf_header import GGUFHeader

CORRECTION_BIAS = MappingProxyType({"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})


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
