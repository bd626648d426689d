"""Shapes of published models, as the configs from which engines build them with dummy weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.processor_folder import write_processor

_QWEN3 = {
    "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "vocab_size": 151936,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False,
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
_QWEN3_DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_QWEN3}

_QWEN3_8B = {
    **_QWEN3_DENSE, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3_14B = {
    **_QWEN3_8B, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
}  # fmt: skip
_QWEN3_VL_TEXT = {
    **{name: value for name, value in _QWEN3_8B.items() if name != "architectures"},
    "rope_theta": 5000000, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}  # fmt: skip
_QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "vocab_size": 152064, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_LLAMA31_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 500000, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "rope_scaling": _LLAMA3_ROPE, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
_LLAMA32_1B = {
    **_LLAMA31_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0}, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN3_30B_A3B = {
    **_QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
_GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12, "swiglu_limit": 7.0,
    "attention_bias": True, "rms_norm_eps": 1e-5, "rope_theta": 150000, "vocab_size": 201088,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 131072, "initial_context_length": 4096, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 200002, "pad_token_id": 199999,
}  # fmt: skip
# As published checkpoints say it.
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_FP8_BLOCKS = {**_FP8, "weight_block_size": [128, 128]}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
    ],
}  # fmt: skip
_INT4 = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True,
    }}},
}  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3_DENSE, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "qwen3-1.7b": {
        **_QWEN3_DENSE, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "qwen3-8b": _QWEN3_8B,
    "qwen3-14b": _QWEN3_14B,
    "qwen3-8b-fp8": {**_QWEN3_8B, "quantization_config": _FP8},
    "qwen3-8b-int4": {**_QWEN3_8B, "quantization_config": _INT4},
    "qwen2.5-7b": _QWEN25_7B,
    "qwen2.5-7b-fp8": {**_QWEN25_7B, "quantization_config": _FP8},
    "qwen2.5-7b-fp8-blocks": {**_QWEN25_7B, "quantization_config": _FP8_BLOCKS},
    "llama-3.2-1b": _LLAMA32_1B,
    "llama-3.1-8b": _LLAMA31_8B,
    "llama-3.1-8b-int4": {**_LLAMA31_8B, "quantization_config": _INT4},
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    "qwen3-30b-a3b-fp8": {**_QWEN3_30B_A3B, "quantization_config": _FP8_BLOCKS},
    "qwen3-next-80b": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "partial_rotary_factor": 0.25, "rope_theta": 10000000, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "vocab_size": 151936, "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
    },
    "qwen3-vl-8b": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": False,
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653, "torch_dtype": "bfloat16", "text_config": _QWEN3_VL_TEXT,
        "vision_config": {
            "model_type": "qwen3_vl", "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_size": 1152,
            "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "intermediate_size": 4304, "num_heads": 16,
            "num_position_embeddings": 2304, "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
    "gpt-oss-20b": _GPT_OSS_20B,
    "gpt-oss-20b-mxfp4": {**_GPT_OSS_20B, "quantization_config": _MXFP4},
    "gpt-oss-120b-mxfp4": {
        **_GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "quantization_config": _MXFP4,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "norm_topk_prob": False, "scoring_func": "softmax", "topk_method": "greedy", "routed_scaling_factor": 1.0,
        "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000, "vocab_size": 102400,
        "rope_scaling": {
            "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 163840, "hidden_act": "silu", "attention_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 100000, "eos_token_id": 100001,
    },
}  # fmt: skip


def config_of(name: str, num_layers: int | None = None) -> dict[str, Any]:
    """A model's config; `num_layers` cuts the model short."""
    config = dict(MODELS[name])
    if num_layers is not None:
        if "text_config" in config:
            config["text_config"] = config["text_config"] | {"num_hidden_layers": num_layers}
        else:
            config["num_hidden_layers"] = num_layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:num_layers]
    return config


def write_config(name: str, folder: Path, num_layers: int | None = None) -> Path:
    """A model folder that holds only `config.json`, and what reads pictures where the model sees."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    config = config_of(name, num_layers)
    (path / "config.json").write_text(json.dumps(config))
    if "vision_config" in config:
        write_processor(path, config)
    return path
