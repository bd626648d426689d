"""`minimax-m2`: MiniMax-M2. Norms of queries and keys go over all heads."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import (
    ATTENTION,
    BLOCK_SPARSE_EXPERTS,
    HEAD_NORMS,
    GGUFArchitecture,
)
from atom_models.checkpoint.gguf_header import GGUFHeader


def _fields(header: GGUFHeader) -> dict[str, Any]:
    return {
        "intermediate_size": header.number("expert_feed_forward_length", header.get("feed_forward_length")),
        "scoring_func": header.scoring("sigmoid"),
        "use_routing_bias": header.has("exp_probs_b.bias"),
    }


MINIMAX_M2 = GGUFArchitecture(
    model_class="MiniMaxM2ForCausalLM",
    model_type="minimax_m2",
    tensors={
        **ATTENTION,
        **HEAD_NORMS,
        **BLOCK_SPARSE_EXPERTS,
        "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
    },
    numbers={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    fields=_fields,
)
