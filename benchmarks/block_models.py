"""Models made of one kind of building block, for `python -m benchmarks blocks`: sizes by flags, weights by chance."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCAB_SIZE = 4096


@dataclass(frozen=True)
class Block:
    """A kind of model.

    Attributes:
        model_type: its type in `transformers`.
        has_file: our engine has a file for it, and yet runs `transformers`' layers, with its file as a third side.
    """

    model_type: str
    has_file: bool = False


BLOCKS = {
    "mixture of experts": Block("qwen3_moe"),
    "latent attention": Block("deepseek_v3"),
    "experts with biases and sinks": Block("gpt_oss"),
    "gated delta nets": Block("qwen3_5_text"),
    "Kimi's delta nets": Block("kimi_linear"),
    "fallback, Llama": Block("llama", has_file=True),
    "fallback, Qwen3": Block("qwen3", has_file=True),
    "fallback, OLMo 2": Block("olmo2"),
    "fallback, Gemma 2": Block("gemma2"),
    "fallback, OLMoE": Block("olmoe"),
}


def write_model(block: str, folder: Path, options: argparse.Namespace) -> Path:
    """A random checkpoint, written by `transformers`, for all sides to read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(BLOCKS[block].model_type, **_fields(block, options))
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Routers as sharp as trained ones, so that tokens part.
            if name.endswith(("gate.weight", "router.weight")):
                parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    return folder


def _fields(block: str, options: argparse.Namespace) -> dict[str, Any]:
    hidden = options.hidden
    heads = max(4, hidden // 64)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "max_position_embeddings": 8192,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    experts = {"num_experts": options.experts, "moe_intermediate_size": hidden // 2, "norm_topk_prob": True}
    latent = {"num_key_value_heads": heads, "q_lora_rank": 3 * hidden // 8, "kv_lora_rank": hidden // 4}
    latent |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    # Dense feed-forward layers in all of them: experts have a model of their own.
    latent |= {"first_k_dense_replace": options.layers, "n_routed_experts": options.experts, "n_group": 1}
    latent |= {"topk_group": 1, "moe_intermediate_size": hidden // 2}
    windows = {"sliding_window": 128, "head_dim": 64, "query_pre_attn_scalar": 64}
    return fields | {
        "mixture of experts": experts | {"head_dim": 64},
        "latent attention": latent,
        "experts with biases and sinks": {"num_local_experts": options.experts, "intermediate_size": hidden // 2}
        | {"sliding_window": 128, "head_dim": 64},
        "gated delta nets": _delta_nets(heads) | {"head_dim": 128, "num_attention_heads": heads // 2},
        # `transformers` saves the dense layers of this type under the names of mixtures: so there are none.
        "Kimi's delta nets": latent
        | {"q_lora_rank": None, "num_local_experts": options.experts, "first_k_dense_replace": 0}
        | {"linear_attn_config": _kimi_layers(heads, options.layers)},
        "fallback, Qwen3": {"head_dim": 64},
        "fallback, Gemma 2": windows,
        "fallback, OLMoE": {"num_experts": options.experts, "intermediate_size": hidden // 2},
    }.get(block, {})


def _delta_nets(heads: int) -> dict[str, Any]:
    """As published ones: three layers of delta nets before each of attention, with twice as many heads for values."""
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    rope |= {"mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    return {
        "linear_num_key_heads": heads // 4,
        "linear_num_value_heads": heads // 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_key_value_heads": max(1, heads // 8),
        "rope_parameters": rope,
    }


def _kimi_layers(heads: int, layers: int) -> dict[str, Any]:
    """As published ones: three layers of delta nets before each of attention, counted from one."""
    full = [*range(4, layers + 1, 4)]
    delta = [layer for layer in range(1, layers + 1) if layer not in full]
    sizes = {"num_heads": heads // 2, "head_dim": 128, "short_conv_kernel_size": 4}
    return sizes | {"kda_layers": delta, "full_attn_layers": full}
