"""Rewrites what `transformers` saves into what the publishers of a family put on the hub.

Written from the published files, so that loaders are held against those and not against the writer of the fixture.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from other_towers import OTHER_TOWERS, draw_tower, with_other_tower

_MLA_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")


def as_published(config: dict[str, Any], model_type: str | None = None) -> dict[str, Any]:
    """`config.json` of `transformers` 5 -> the spelling of 2024 and 2025: `rope_theta`, `rope_scaling`, `torch_dtype`.

    `model_type` is the publisher's own, where it differs from the one that `transformers` gives to the same model.
    """
    config = {key: value for key, value in config.items() if key not in ("transformers_version", "num_mtp_layers")}
    kind = config["model_type"]
    if kind.startswith("qwen3_5"):
        # Published by a release that writes rope_parameters and dtype itself.
        return config | {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    if kind == "ministral3":
        return config
    config["torch_dtype"] = config.pop("dtype")
    if kind == "kimi_linear":
        return _kimi_linear(config)
    rope = config.pop("rope_parameters")
    if kind == "gemma3_text":
        config |= _gemma3(config, rope)
    else:
        config |= _one_rope(rope, config)
    if kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"):
        config["scoring_func"] = "softmax" if kind == "deepseek_v2" else "sigmoid"
    if kind in _MLA_TYPES[1:]:
        config |= {"topk_method": "noaux_tc", "num_nextn_predict_layers": 1}
    if kind in _MLA_TYPES:
        config |= {"moe_layer_freq": 1, "ep_size": 1, "pretraining_tp": 1}
        for derived in ("head_dim", "qk_head_dim", "rope_interleave", "mlp_layer_types", "layer_types"):
            config.pop(derived, None)
    if kind == "glm_moe_dsa":
        config |= {"head_dim": 64, "rope_interleave": True, "indexer_rope_interleave": True}
    if kind == "glm4_moe_lite":
        config["first_k_dense_replace"] = 1
    if kind == "glm4_moe":
        config["num_nextn_predict_layers"] = 1
    if kind == "minimax_m2":
        config |= {"scoring_func": "sigmoid", "use_routing_bias": True}
        config |= {"use_qk_norm": True, "qk_norm_type": "per_layer"}
        config["rotary_dim"] = int(config["head_dim"] * config.pop("partial_rotary_factor", 1.0))
    if kind == "qwen2":
        config.pop("layer_types")
    if kind == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if kind == "gpt_oss":
        config.pop("swiglu_alpha", None)
        config |= {"experts_per_token": config["num_experts_per_tok"], "initial_context_length": 32}
    if model_type is not None:
        config["model_type"] = model_type
        names = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
        config |= {"auto_map": names, "num_nextn_predict_layers": 0}
    return config


def with_images(
    config: dict[str, Any], weights: dict[str, torch.Tensor], architecture: str
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A text model -> what is published with a vision tower: a nested config, other names, and the tower's weights."""
    outer = {"architectures": [architecture], "tie_word_embeddings": config.pop("tie_word_embeddings")}
    # No test draws 0 as a token of text, which must have no image token.
    kind = _VISION_TYPES[config["model_type"]]
    if kind in OTHER_TOWERS:
        return with_other_tower(kind, outer | {"text_config": config}, weights)
    outer |= {"image_token_id": 0, "vision_start_token_id": 382, "vision_end_token_id": 383, "text_config": config}
    tower = {**_TOWER, "out_hidden_size": config["hidden_size"], **_TOWERS.get(kind, {})}
    outer |= {"model_type": kind, "vision_config": tower}
    towers = {f"{_prefix_of(kind)}.{name}": tensor for name, tensor in _tower_weights(kind, tower).items()}
    if kind == "qwen2_5_vl":
        # Not nested, and the text model's names are its own.
        del outer["text_config"]
        return config | outer, weights | towers
    return outer, _nested(config, weights, turned=kind == "qwen3_vl_moe") | towers


# Text model -> what it is published in.
_VISION_TYPES = {
    "gemma3_text": "gemma3",
    "kimi_k2": "kimi_k25",
    "ministral3": "mistral3",
    "mistral": "mistral3",
    "qwen2": "qwen2_5_vl",
    "qwen3": "qwen3_vl",
    "qwen3_moe": "qwen3_vl_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
}
_TOWER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN3_VL = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0], "hidden_act": "gelu_pytorch_tanh"}
_TOWERS = {
    "qwen2_5_vl": {"window_size": 16, "fullatt_block_indexes": [1], "hidden_act": "silu"},
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen3_5": _QWEN3_VL | {"deepstack_visual_indexes": []},
    "qwen3_5_moe": _QWEN3_VL | {"deepstack_visual_indexes": []},
}


def preprocessor_config(config: dict[str, Any]) -> dict[str, Any] | None:
    """`preprocessor_config.json` beside a `config.json` as published, for pictures of 1 to 100 tokens."""
    if config["model_type"] in OTHER_TOWERS:
        return OTHER_TOWERS[config["model_type"]].processor
    if config["model_type"] not in _TOWERS:
        return None
    sizes = {"patch_size": _TOWER["patch_size"], "merge_size": 2, "temporal_patch_size": 2}
    if config["model_type"] == "qwen2_5_vl":
        clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
        return sizes | clip | {"min_pixels": 64, "max_pixels": 6400}
    halves = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    return sizes | halves | {"size": {"shortest_edge": 64, "longest_edge": 6400}}


def _prefix_of(kind: str) -> str:
    return "visual" if kind == "qwen2_5_vl" else "model.visual"


def _tower_weights(kind: str, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tower of `transformers`, under its own names: the publishers' without their prefix."""
    whole = transformers.AutoConfig.for_model(kind)
    vision = type(whole.vision_config)(**config)
    with torch.random.fork_rng():
        torch.manual_seed(len(kind))
        tower = transformers.AutoModel.from_config(vision, dtype=torch.float32)
        draw_tower(tower)
    return {name: tensor.contiguous() for name, tensor in tower.state_dict().items()}


def _kimi_linear(config: dict[str, Any]) -> dict[str, Any]:
    derived = ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
    config = {name: value for name, value in config.items() if name not in (*derived, "qk_head_dim", "head_dim")}
    config |= {"first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "head_dim": 72}
    config |= {"moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "mla_use_nope": True}
    return config | {"rope_scaling": None, "rope_theta": 10000.0}


def _nested(config: dict[str, Any], weights: dict[str, torch.Tensor], *, turned: bool) -> dict[str, torch.Tensor]:
    """A text model's weights under the names that it has beside a tower, all experts of a layer in one tensor."""
    fused = fuse_experts(weights, config.get("num_experts", 0))
    if turned:
        fused = {
            name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
            for name, tensor in fused.items()
        }
    return {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in fused.items()}


def fuse_experts(weights: dict[str, torch.Tensor], num_experts: int) -> dict[str, torch.Tensor]:
    """Experts one by one -> `gate_up_proj` [E, 2I, H], gate first, and `down_proj` [E, H, I], without `.weight`."""
    fused = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for layer in sorted({name.partition(".experts.")[0] for name in weights if ".experts." in name}):
        experts = f"{layer}.experts"
        gate, up, down = (
            torch.stack([weights[f"{experts}.{expert}.{part}_proj.weight"] for expert in range(num_experts)])
            for part in ("gate", "up", "down")
        )
        fused |= {f"{experts}.gate_up_proj": torch.cat([gate, up], dim=1), f"{experts}.down_proj": down}
    return fused


def declare_prediction_layers(config: dict[str, Any], count: int) -> dict[str, Any]:
    """The field of `config.json` for so many layers that predict further tokens; Qwen3-Next has one, and no field."""
    if config["model_type"] == "qwen3_next":
        return config
    name = "mtp_num_hidden_layers" if config["model_type"].startswith("qwen3_5") else "num_nextn_predict_layers"
    return config | {name: count}


def prediction_layer(
    weights: dict[str, torch.Tensor], num_layers: int, index: int = 0, *, in_mtp: bool = False
) -> dict[str, torch.Tensor]:
    """The weights of a layer that predicts a further token, unused by the model itself.

    It is like the last one, with other numbers, and stored behind it, or under `mtp`, as Qwen's.
    """
    last, added = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers + index}."
    added = f"mtp.layers.{index}." if in_mtp else added
    hidden, generator = weights["model.norm.weight"].shape[0], torch.Generator().manual_seed(num_layers + index)

    def near(value: torch.Tensor, distance: float) -> torch.Tensor:
        return value + distance * torch.randn(value.shape, generator=generator)

    of_last = {name.removeprefix(last): value for name, value in weights.items() if name.startswith(last)}
    layer = {added + name: near(value, 0.3 * float(value.std())) for name, value in of_last.items()}
    if in_mtp:
        # Norms of Qwen are stored less one.
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            layer[f"mtp.{name}.weight"] = near(torch.zeros(hidden), 0.2)
        return layer | {"mtp.fc.weight": near(torch.zeros(hidden, 2 * hidden), 0.1)}
    for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight"):
        layer[added + name] = near(torch.ones(hidden), 0.2)
    layer[added + "eh_proj.weight"] = near(torch.zeros(hidden, 2 * hidden), 0.1)
    layer[added + "embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    layer[added + "shared_head.head.weight"] = weights["lm_head.weight"].clone()
    return layer


def _one_rope(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    rope = dict(rope)
    fields = {"rope_theta": rope.pop("rope_theta")}
    if "partial_rotary_factor" in rope:
        fields["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    is_deepseek = config["model_type"] in _MLA_TYPES
    if is_deepseek and rope["rope_type"] != "default":
        rope["type"] = rope.pop("rope_type")
        fields["rope_scaling"] = rope
    else:
        fields["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    return fields


def _gemma3(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    config.pop("_sliding_window_pattern", None)
    layer_types = config.pop("layer_types", [])
    full = dict(rope["full_attention"])
    fields = {"rope_theta": full.pop("rope_theta"), "rope_local_base_freq": rope["sliding_attention"]["rope_theta"]}
    fields["rope_scaling"] = None if full["rope_type"] == "default" else full
    return fields | ({"sliding_window_pattern": layer_types.index("full_attention") + 1} if layer_types else {})
