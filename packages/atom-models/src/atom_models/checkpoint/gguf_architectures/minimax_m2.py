"""`minimax-m2`: MiniMax-M2. Norms of queries and keys go over all heads."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, HEAD_NORMS, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader


def _config(header: GGUFHeader) -> dict[str, Any]:
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "intermediate_size": header.number("expert_feed_forward_length", header.get("feed_forward_length")),
        **header.numbers(num_local_experts="expert_count", num_experts_per_tok="expert_used_count"),
        "scoring_func": header.scoring("sigmoid"),
        "use_routing_bias": header.has("exp_probs_b.bias"),
    }


MINIMAX_M2 = GGUFArchitecture(
    config=_config,
    tensors={
        **ATTENTION,
        **HEAD_NORMS,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
        "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
    },
)
