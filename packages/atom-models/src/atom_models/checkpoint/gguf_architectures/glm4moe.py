"""`glm4moe`: GLM-4.5 and its successors. Blocks behind the last layer predict further tokens and are left unread."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    MLP,
    SHARED_EXPERTS,
    GGUFArchitecture,
)
from atom_models.checkpoint.gguf_architectures.fine_grained_moe import CORRECTION_BIAS, expert_fields
from atom_models.checkpoint.gguf_header import GGUFHeader


def _config(header: GGUFHeader) -> dict[str, Any]:
    header.require_scoring("sigmoid")
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "use_qk_norm": header.has("attn_q_norm.weight"),
        **expert_fields(header, normalized=True),
    }


GLM4MOE = GGUFArchitecture(
    config=_config,
    tensors={
        **ATTENTION,
        **HEAD_NORMS,
        **MLP,
        **EXPERTS,
        **SHARED_EXPERTS,
        **CORRECTION_BIAS,
        "post_attention_norm": "post_attention_layernorm",
    },
)
