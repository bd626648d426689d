"""`qwen2`, `qwen3` and `qwen3moe`: Qwen2, 2.5 and 3.

Their sliding window, which no published config turns on, is not written.
"""

from __future__ import annotations

from atom_models.checkpoint.gguf_architectures.architecture import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    MLP,
    GGUFArchitecture,
)

QWEN2 = GGUFArchitecture(
    model_class="Qwen2ForCausalLM",
    model_type="qwen2",
    tensors={**ATTENTION, **MLP},
    # Queries, keys and values always have biases.
    fields=lambda header: {"attention_bias": None},
)
QWEN3 = GGUFArchitecture(model_class="Qwen3ForCausalLM", model_type="qwen3", tensors={**ATTENTION, **HEAD_NORMS, **MLP})
QWEN3MOE = GGUFArchitecture(
    model_class="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    tensors={**ATTENTION, **HEAD_NORMS, **EXPERTS},
    numbers={
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    scoring="softmax",
    # The converter leaves it out: all published models have it, and llama.cpp always does it.
    fields=lambda header: {"norm_topk_prob": bool(header.get("expert_weights_norm", True))},
)
