"""Tiny towers of Gemma 3, Mistral 3 and Kimi-K2.5, in the spelling of their publishers, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_SIZES = {"hidden_size": 16, "intermediate_size": 24, "patch_size": 4}
_PIXTRAL = {
    **_SIZES,
    "model_type": "pixtral",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 80,
    "head_dim": 8,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
# The publisher's fields, and those that transformers reads.
_MOONVIT = {
    **_SIZES,
    "init_pos_emb_height": 6,
    "init_pos_emb_width": 6,
    "init_pos_emb_time": 4,
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "mm_hidden_size": 16,
    "mm_projector_type": "patchmerger",
    "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-5,
    "vt_hidden_size": 16,
    "vt_intermediate_size": 24,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pos_emb_height": 6,
    "pos_emb_width": 6,
}
_SIGLIP = {
    **_SIZES,
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "vision_use_head": False,
}
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


@dataclass(frozen=True)
class OtherTower:
    """A tower.

    Attributes:
        outer: fields of `config.json` beside those of the text.
        processor: `preprocessor_config.json`.
        shapes: gives the shape of each of its weights, by the hidden size of the text.
    """

    outer: dict[str, Any]
    processor: dict[str, Any]
    shapes: Callable[[int], dict[str, tuple[int, ...]]]


def with_other_tower(
    kind: str, config: dict[str, Any], weights: dict[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A nested text model -> what is published with a tower."""
    tower, generator = OTHER_TOWERS[kind], torch.Generator().manual_seed(len(kind))
    shapes = tower.shapes(config["text_config"]["hidden_size"])
    drawn = {name: drawn_weight(name, shape, generator) for name, shape in shapes.items()}
    nested = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    return config | tower.outer | {"model_type": kind}, nested | drawn


def draw_tower(tower: torch.nn.Module) -> None:
    """Weights that are large enough that what is seen changes what is said."""
    for name, parameter in tower.named_parameters():
        parameter.data.copy_(drawn_weight(name, tuple(parameter.shape), None))


def drawn_weight(name: str, shape: tuple[int, ...], generator: torch.Generator | None) -> torch.Tensor:
    """Norms scale by about 1."""
    drawn = torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1)
    return 1 + drawn if name.endswith("weight") and len(shape) == 1 else drawn


def _pixtral(hidden: int) -> dict[str, tuple[int, ...]]:
    square, wide = (16, 16), (24, 16)
    layer = {
        **{f"attention.{name}_proj.weight": square for name in "qkvo"},
        **{f"feed_forward.{name}_proj.weight": wide for name in ("gate", "up")},
        "feed_forward.down_proj.weight": wide[::-1],
        "attention_norm.weight": (16,),
        "ffn_norm.weight": (16,),
    }
    return {
        "vision_tower.patch_conv.weight": (16, 3, 4, 4),
        "vision_tower.ln_pre.weight": (16,),
        **{f"vision_tower.transformer.layers.{index}.{name}": layer[name] for index in range(2) for name in layer},
        "multi_modal_projector.norm.weight": (16,),
        "multi_modal_projector.patch_merger.merging_layer.weight": (16, 64),
        "multi_modal_projector.linear_1.weight": (hidden, 16),
        "multi_modal_projector.linear_2.weight": (hidden, hidden),
    }


def _moonvit(hidden: int) -> dict[str, tuple[int, ...]]:
    layer = {"norm0": (16,), "norm1": (16,), "wqkv": (48, 16), "wo": (16, 16), "mlp.fc0": (24, 16), "mlp.fc1": (16, 24)}
    linears = {
        "vision_tower.patch_embed.proj": (16, 3, 4, 4),
        **{f"vision_tower.encoder.blocks.{index}.{name}": layer[name] for index in range(2) for name in layer},
        "vision_tower.encoder.final_layernorm": (16,),
        "mm_projector.pre_norm": (16,),
        "mm_projector.proj.0": (64, 64),
        "mm_projector.proj.2": (hidden, 64),
    }
    weights = {f"{name}.weight": shape for name, shape in linears.items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    return {**weights, **biases, "vision_tower.patch_embed.pos_emb.weight": (6, 6, 16)}


def _siglip(hidden: int) -> dict[str, tuple[int, ...]]:
    of_layer = {f"self_attn.{name}": (16, 16) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    of_layer |= {"mlp.fc1": (24, 16), "mlp.fc2": (16, 24), "layer_norm1": (16,), "layer_norm2": (16,)}
    linears = {
        "embeddings.patch_embedding": (16, 3, 4, 4),
        **{f"encoder.layers.{index}.{name}": shape for index in range(2) for name, shape in of_layer.items()},
        "post_layernorm": (16,),
    }
    weights = {f"vision_tower.vision_model.{name}.weight": shape for name, shape in linears.items()}
    biases = {f"vision_tower.vision_model.{name}.bias": shape[:1] for name, shape in linears.items()}
    return {
        **weights,
        **biases,
        "vision_tower.vision_model.embeddings.position_embedding.weight": (64, 16),
        "multi_modal_projector.mm_soft_emb_norm.weight": (16,),
        "multi_modal_projector.mm_input_projection_weight": (16, hidden),
    }


OTHER_TOWERS = {
    "gemma3": OtherTower(
        {
            "image_token_index": 0,
            "boi_token_index": 382,
            "eoi_token_index": 383,
            "mm_tokens_per_image": 16,
            "vision_config": _SIGLIP,
        },
        {
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_pan_and_scan": None,
            "resample": 2,
            "size": {"height": 32, "width": 32},
        },
        _siglip,
    ),
    "mistral3": OtherTower(
        {
            "image_token_index": 0,
            "vision_config": _PIXTRAL,
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
        },
        {**_CLIP, "size": {"longest_edge": 80}, "patch_size": {"height": 4, "width": 4}},
        _pixtral,
    ),
    "kimi_k25": OtherTower(
        {
            "media_placeholder_token_id": 0,
            "image_token_id": 0,
            "projection_hidden_size": 16,
            "vision_config": _MOONVIT,
        },
        {
            "media_proc_cfg": {
                "in_patch_limit": 400,
                "patch_size": 4,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "merge_kernel_size": 2,
                "fixed_output_tokens": None,
                "patch_limit_on_one_side": 32,
                "in_patch_limit_each_frame": 100,
                "in_patch_limit_video": None,
                "sample_fps": 2.0,
                "max_num_frames_each_video": None,
                "temporal_merge_kernel_size": 4,
                "timestamp_mode": "hh:mm:ss.fff",
            }
        },
        _moonvit,
    ),
}
