"""`llama`: Llama and Mistral; with experts it is Mixtral. A sliding window is not written, here or by llama.cpp."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, MLP, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader

_GATE, _UP, _DOWN = (f"block_sparse_moe.experts.{{expert}}.{name}" for name in ("w1", "w3", "w2"))


def _config(header: GGUFHeader) -> dict[str, Any]:
    if not header.get("expert_count"):
        biases = {"mlp_bias": header.has("ffn_up.bias")}
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **biases}
    header.require_scoring("softmax")
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        **header.numbers(num_local_experts="expert_count", num_experts_per_tok="expert_used_count"),
    }


LLAMA = GGUFArchitecture(
    config=_config,
    tensors={
        **ATTENTION,
        **MLP,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": _GATE,
        "ffn_up_exps": _UP,
        "ffn_down_exps": _DOWN,
        # Files of before 2024-04 hold each expert by itself.
        "ffn_gate.{expert}": _GATE,
        "ffn_up.{expert}": _UP,
        "ffn_down.{expert}": _DOWN,
    },
    permutes_heads=True,
)
