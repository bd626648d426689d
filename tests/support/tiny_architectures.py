"""Tiny random checkpoints of every supported family, written by `transformers`, with `transformers` as their reference.

`make_tiny(family, folder)` writes what a published checkpoint of the family looks like (its spelling of config.json,
its tensor names, layers of multi-token prediction), and beside it, in `folder/transformers`, what
`transformers` itself saved: `reference_model(folder)` loads that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from published_spelling import (
    as_published,
    declare_prediction_layers,
    prediction_layer,
    preprocessor_config,
    with_images,
)
from tiny_models import write_tokenizer

SIZES = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MLA = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    # `transformers` gives latents this one, whatever stands here.
    "rms_norm_eps": 1e-6,
}
# Fewer heads would often leave scores of exactly 0, and with them ties.
_INDEX = {"index_n_heads": 32, "index_head_dim": 24, "index_topk": 8}
_KIMI_K2 = _MLA | {
    "num_hidden_layers": 2,
    "n_routed_experts": 12,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "norm_topk_prob": True,
}
_DELTA_NETS = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
_GATED_EXPERTS = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
_MROPE = _DELTA_NETS["rope_parameters"] | {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
_QWEN3_5 = _DELTA_NETS | {"rope_parameters": _MROPE}


def _mrope(*section: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(section)} | more


def _yarn(factor: float, original: int, **more: Any) -> dict[str, Any]:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": factor, "original_max_position_embeddings": original}
    return yarn | {"beta_fast": 32.0, "beta_slow": 1.0} | more


_MINISTRAL3 = {
    "head_dim": 24,
    "rope_parameters": _yarn(16.0, 24, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
}
_DEEPSEEK_V3 = _MLA | {
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rope_parameters": _yarn(8.0, 32, mscale=1.0, mscale_all_dim=1.0),
}


@dataclass(frozen=True)
class Family:
    """One family: the class that its checkpoints name, the model type in `transformers`, and sizes of a tiny one.

    `has_prediction_layer`: published checkpoints hold a layer more, for multi-token prediction.
    """

    architecture: str
    model_type: str
    seed: int
    fields: dict[str, Any] = field(default_factory=dict)
    has_prediction_layer: bool = False
    published_model_type: str | None = None


_GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 24,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 20,
    "sliding_window": 13,
    "sliding_window_pattern": 3,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    },
}

FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "llama", 1, {"num_key_value_heads": 4}),
    "llama-3.1": Family(
        "LlamaForCausalLM",
        "llama",
        2,
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": Family("MistralForCausalLM", "mistral", 3, {"sliding_window": 21, "head_dim": 24}),
    "mistral-full": Family("MistralForCausalLM", "mistral", 4, {"sliding_window": None}),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", 5, {"hidden_size": 96, "num_attention_heads": 6}),
    "qwen2-window": Family(
        "Qwen2ForCausalLM",
        "qwen2",
        6,
        {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", 7, {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        8,
        _GEMMA3,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        9,
        {
            "head_dim": 32,
            "moe_intermediate_size": 40,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe-mixed": Family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        10,
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "mixtral": Family(
        "MixtralForCausalLM", "mixtral", 11, {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_size": 48}
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        12,
        {
            "head_dim": 32,
            "intermediate_size": 40,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        13,
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "moe_intermediate_size": 24,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
        },
        has_prediction_layer=True,
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "gpt_oss",
        14,
        {
            "num_hidden_layers": 4,
            "hidden_size": 80,
            "intermediate_size": 72,
            "head_dim": 16,
            "num_attention_heads": 8,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 11,
            "rope_parameters": _yarn(8.0, 32, truncate=False) | {"rope_theta": 150000.0},
        },
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        15,
        {
            **_MLA,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "n_shared_experts": 2,
            "routed_scaling_factor": 4.0,
            "norm_topk_prob": False,
            "rope_parameters": _yarn(8.0, 32, mscale=0.707, mscale_all_dim=0.707),
        },
    ),
    "deepseek_v2-lite": Family(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        16,
        {
            **_MLA,
            "num_hidden_layers": 2,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": False,
        },
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        17,
        _DEEPSEEK_V3,
        has_prediction_layer=True,
    ),
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        27,
        _DEEPSEEK_V3 | _INDEX,
        has_prediction_layer=True,
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        28,
        {
            **_MLA,
            **_INDEX,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 8e6},
            "indexer_types": ["full", "shared", "full"],
        },
        has_prediction_layer=True,
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        "kimi_linear",
        30,
        {
            **{name: _MLA[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "moe_intermediate_size": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.446,
            "rms_norm_eps": 1e-6,
            "linear_attn_config": {
                "num_heads": 4,
                "head_dim": 16,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 2, 3],
                "full_attn_layers": [4],
            },
        },
    ),
    "kimi_k2": Family(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        18,
        _KIMI_K2 | {"rope_parameters": _yarn(32.0, 16, mscale=1.0, mscale_all_dim=1.0) | {"beta_fast": 1.0}},
        published_model_type="kimi_k2",
    ),
    "kimi_k25": Family(
        "KimiK25ForConditionalGeneration",
        "deepseek_v3",
        26,
        _KIMI_K2 | {"rope_parameters": _yarn(64.0, 16, mscale=1.0, mscale_all_dim=1.0)},
        published_model_type="kimi_k2",
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        19,
        {
            **_MLA,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "norm_topk_prob": True,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        has_prediction_layer=True,
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        21,
        _DELTA_NETS | _GATED_EXPERTS | {"norm_topk_prob": True},
        has_prediction_layer=True,
    ),
    "qwen3_5": Family(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5_text",
        22,
        _QWEN3_5 | {"tie_word_embeddings": True},
        has_prediction_layer=True,
    ),
    "qwen3_5-text": Family("Qwen3_5ForCausalLM", "qwen3_5_text", 23, _QWEN3_5, has_prediction_layer=True),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe_text",
        24,
        _QWEN3_5 | _GATED_EXPERTS,
        has_prediction_layer=True,
    ),
    "qwen3_5_moe-text": Family(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 25, _QWEN3_5 | _GATED_EXPERTS, has_prediction_layer=True
    ),
    "qwen2_5_vl": Family("Qwen2_5_VLForConditionalGeneration", "qwen2", 31, {"rope_parameters": _mrope(4, 2, 2)}),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "qwen3",
        32,
        {"head_dim": 32, "rope_parameters": _mrope(6, 5, 5, mrope_interleaved=True)},
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_moe",
        33,
        {
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "rope_parameters": _mrope(4, 2, 2, mrope_interleaved=True),
        },
    ),
    "ministral3-text": Family("Ministral3ForCausalLM", "ministral3", 36, _MINISTRAL3),
    "ministral3": Family("Mistral3ForConditionalGeneration", "ministral3", 35, _MINISTRAL3),
    "mistral3": Family("Mistral3ForConditionalGeneration", "mistral", 34, {"sliding_window": None, "head_dim": 24}),
    "gemma3-seeing": Family("Gemma3ForConditionalGeneration", "gemma3_text", 37, _GEMMA3),
    "nemotron": Family("NemotronForCausalLM", "nemotron", 20, {"head_dim": 24, "norm_eps": 1e-3}),
}

# Tokens that leave every window and every original rope length of the tiny models behind.
PAST_EVERY_WINDOW = 150


def make_tiny(
    family: str, folder: str | Path, *, seed: int | None = None, num_prediction_layers: int = 1, **overrides: Any
) -> Path:
    """Writes a float32 checkpoint of `family` (a key of `FAMILIES`) and returns its folder.

    `overrides` are config fields under the names that `transformers` gives them; `seed` draws other weights;
    `num_prediction_layers` is how many there are where the family has any.
    """
    folder, recipe = Path(folder), FAMILIES[family]
    config = transformers.AutoConfig.for_model(recipe.model_type, **(SIZES | recipe.fields | overrides))
    torch.manual_seed(recipe.seed if seed is None else seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    redraw(model)
    saved = folder / "transformers"
    model.save_pretrained(saved)
    weights = load_file(saved / "model.safetensors")
    if recipe.model_type == "kimi_linear":
        # `transformers` reads the publisher's name for the MLP of the first layer, and writes that of experts.
        weights = {name.replace(".layers.0.block_sparse_moe.", ".layers.0.mlp."): weights[name] for name in weights}
        save_file(weights, saved / "model.safetensors", {"format": "pt"})
    published = as_published(json.loads((saved / "config.json").read_text()), recipe.published_model_type)
    if recipe.has_prediction_layer:
        published = declare_prediction_layers(published, num_prediction_layers)
        in_mtp = recipe.model_type.startswith("qwen3")
        for index in range(num_prediction_layers):
            weights |= prediction_layer(weights, config.num_hidden_layers, index, in_mtp=in_mtp)
    if recipe.architecture.endswith("ForConditionalGeneration"):
        published, weights = with_images(published, weights, recipe.architecture)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(published, indent=1))
    if (pictures := preprocessor_config(published)) is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    write_tokenizer(folder, config.vocab_size, config.max_position_embeddings)
    return folder


def reference_model(folder: str | Path) -> Any:
    """The `transformers` model of a folder that `make_tiny` wrote, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "transformers", dtype=torch.float32).eval()


def families(supported: tuple[str, ...]) -> list[str]:
    """The families whose architecture is among `supported`."""
    return [name for name, family in FAMILIES.items() if family.architecture in supported]


@torch.no_grad()
def redraw(model: torch.nn.Module) -> None:
    """Draws weights large enough that routing and the best token are far from ties."""
    tied = model.config.tie_word_embeddings
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            # A large tied embedding would echo the last token for ever: keep it small and sharpen in the last norm.
            parameter.normal_(0, 0.05 if tied else 0.2)
        elif name.endswith("sinks"):
            parameter.normal_(0, 1.0)
        elif "bias" in name:
            parameter.normal_(0, 0.1)
        elif "norm" in name:
            # Whether a norm scales by w or by 1 + w, keep what it begins with as the middle.
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if tied and name == "model.norm.weight":
                parameter.add_(3.0)
        elif ".router." in name or name.endswith(".gate.weight"):
            parameter.normal_(0, 0.3)
        else:
            parameter.normal_(0, 0.08)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.1)
