"""`gpt-oss`: GPT-OSS. Gate and up of the experts are apart in the file, and not interleaved."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, EXPERTS, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader
from atom_models.checkpoint.layer_types import FULL, SLIDING


def _fields(header: GGUFHeader) -> dict[str, Any]:
    return {
        "intermediate_size": header.number("expert_feed_forward_length", header.get("feed_forward_length")),
        # Facts of both published models that the converter leaves out.
        "layer_types": [(SLIDING, FULL)[layer_id % 2] for layer_id in range(header.number("block_count"))],
        "rope_parameters": {"truncate": False},
    }


GPT_OSS = GGUFArchitecture(
    model_class="GptOssForCausalLM",
    model_type="gpt_oss",
    tensors={
        **ATTENTION,
        **EXPERTS,
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
    },
    numbers={
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "sliding_window": "attention.sliding_window",
    },
    scoring="softmax",
    fields=_fields,
)
