"""`deepseek2`: DeepSeek V2, V3 and R1, Kimi-K2, GLM-4.7-Flash."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_architectures.architecture import (
    CORRECTION_BIAS,
    EXPERTS,
    MLP,
    SHARED_EXPERTS,
    GGUFArchitecture,
)
from atom_models.checkpoint.gguf_architectures.fine_grained_moe import expert_fields
from atom_models.checkpoint.gguf_header import GGUFHeader


def _fields(header: GGUFHeader) -> dict[str, Any]:
    heads, rope_dim = header.number("attention.head_count"), header.number("rope.dimension_count")
    # Files of before 2025-04 have the sizes of a head under the plain names; now those are of the latent.
    key_dim = header.number("attention.key_length_mla", header.get("attention.key_length"))
    value_dim = header.number("attention.value_length_mla", header.get("attention.value_length"))
    experts = expert_fields(header, normalized=False)
    config = {
        # The file may say that there is one head: the latent.
        "num_key_value_heads": heads,
        "kv_lora_rank": header.number("attention.kv_lora_rank"),
        "q_lora_rank": header.optional_number("attention.q_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_dim - rope_dim,
        "v_head_dim": value_dim,
        "head_dim": None,
        "rope_parameters": _temperature(header),
        **experts,
    }
    # Only some files name the scores; those of the third generation have a bias that helps to choose.
    if header.scoring("sigmoid" if header.has("exp_probs_b.bias") else "softmax") == "sigmoid":
        return config
    method = "group_limited_greedy" if experts["n_group"] > 1 else "greedy"
    return {**config, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "topk_method": method}


def _temperature(header: GGUFHeader) -> dict[str, Any]:
    """YaRN's factors: the header has a tenth of the config's. It drops `mscale`; published models have both alike."""
    multiplier = header.optional_number("rope.scaling.yarn_log_multiplier")
    if multiplier is None:
        return {}
    mscale = round(multiplier * 10, 6)
    return {"mscale": mscale, "mscale_all_dim": mscale}


DEEPSEEK2 = GGUFArchitecture(
    model_class="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    tensors={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        # Since 2025-04 attn_kv_b is stored in two halves: attn_k_b and attn_v_b.
        "attn_k_b": "self_attn.kv_b_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        **MLP,
        **EXPERTS,
        **SHARED_EXPERTS,
        **CORRECTION_BIAS,
    },
    fields=_fields,
)
