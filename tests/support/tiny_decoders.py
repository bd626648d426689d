"""Tiny random checkpoints of decoders that have no file here, as `transformers` saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tiny_architectures import SIZES, redraw
from tiny_models import write_tokenizer

_BOTH_KINDS = {"sliding_window": 13, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

# By the model type in transformers: what differs from the sizes above.
DECODERS: dict[str, dict[str, Any]] = {
    "gemma2": {**_BOTH_KINDS, "head_dim": 24, "query_pre_attn_scalar": 20, "tie_word_embeddings": True},
    "phi3": {"sliding_window": 21},
    "olmo2": {},
    "olmo3": _BOTH_KINDS,
    "granite": {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
    | {"logits_scaling": 2.0},
    "cohere2": {**_BOTH_KINDS, "logit_scale": 0.25},
    "smollm3": {"num_hidden_layers": 4},
    "starcoder2": {"sliding_window": 19},
    "ernie4_5": {},
    "seed_oss": {"head_dim": 24},
    "hunyuan_v1_dense": {"head_dim": 16},
    "exaone4": {**_BOTH_KINDS, "sliding_window_pattern": 2},
    "llama": {},
    "qwen3": {"head_dim": 32},
    "cohere": {"logit_scale": 0.25},
    "olmo": {},
    "gemma": {"head_dim": 24, "tie_word_embeddings": True},
    "phi": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512, "tie_word_embeddings": True},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "tie_word_embeddings": True},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "helium": {"head_dim": 16},
    "arcee": {},
    "apertus": {},
    "ministral": {**_BOTH_KINDS, "head_dim": 16},
    "ministral3": {"head_dim": 16},
    "olmoe": _EXPERTS,
    "granitemoe": {**_EXPERTS, "attention_multiplier": 0.2},
    "ernie4_5_moe": {**_EXPERTS, "moe_num_experts": 6, "moe_k": 2, "moe_layer_start_index": 1},
    "dots1": {**_EXPERTS, "n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1}
    | {"topk_group": 1},
    "hunyuan_v1_moe": {**_EXPERTS, "head_dim": 16, "moe_topk": 2},
    "flex_olmo": _EXPERTS,
    "phimoe": _EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "vaultgemma": {**_BOTH_KINDS, "head_dim": 24, "query_pre_attn_scalar": 20},
    "nanochat": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "biogpt": {"tie_word_embeddings": True},
    "diffllama": {},
    "bloom": {"tie_word_embeddings": True},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
}


def make_decoder(model_type: str, folder: str | Path, **overrides: Any) -> Path:
    """Writes a float32 checkpoint of the type (a key of `DECODERS`) and returns its folder."""
    folder = Path(folder)
    config = transformers.AutoConfig.for_model(model_type, **(SIZES | DECODERS[model_type] | overrides))
    torch.manual_seed(sorted(DECODERS).index(model_type) + 50)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    redraw(model)
    model.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size, 512)
    return folder
