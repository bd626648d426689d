"""What follows the names of linears in published checkpoints, and the parts that most of them have."""

from __future__ import annotations

from published_checkpoints import Layout

PLAIN: Layout = {"weight": ("BF16", "N K")}
FP8_BLOCK: Layout = {"weight": ("F8_E4M3", "N K"), "weight_scale_inv": ("F32", "N/128 K/128")}
FP8_BLOCK_BF16: Layout = FP8_BLOCK | {"weight_scale_inv": ("BF16", "N/128 K/128")}
FP8_STATIC: Layout = {"weight": ("F8_E4M3", "N K"), "weight_scale": ("BF16", "1"), "input_scale": ("BF16", "1")}
FP8_QUARK: Layout = {"weight": ("F8_E4M3", "N K"), "weight_scale": ("F32", ""), "input_scale": ("F32", "")}
FP8_DYNAMIC: Layout = {"weight": ("F8_E4M3", "N K"), "weight_scale": ("BF16", "N 1")}
INT8: Layout = {"weight": ("I8", "N K"), "weight_scale": ("BF16", "N 1")}
AWQ: Layout = {"qweight": ("I32", "K N/8"), "qzeros": ("I32", "K/128 N/8"), "scales": ("F16", "K/128 N")}
MXFP4: Layout = {"weight": ("U8", "N K/2"), "weight_scale": ("U8", "N K/32")}


def packed(group: int, shape_dtype: str) -> Layout:
    """compressed-tensors' int4."""
    return {
        "weight_packed": ("I32", "N K/8"),
        "weight_scale": ("BF16", f"N K/{group}"),
        "weight_shape": (shape_dtype, "2"),
    }


Linears = dict[str, tuple[int, int, Layout]]
Others = dict[str, tuple[str, str]]


def norms_of(layers: str, hidden: int, *more: str) -> Others:
    names = f"{{input_layernorm,post_attention_layernorm{''.join(f',{name}' for name in more)}}}"
    return {
        f"model.layers.{layers}.{names}.weight": ("BF16", str(hidden)),
        "model.norm.weight": ("BF16", str(hidden)),
    }


def tables_of(vocab_size: int, hidden: int) -> Others:
    return {"{model.embed_tokens,lm_head}.weight": ("BF16", f"{vocab_size} {hidden}")}


def mlp_of(prefix: str, hidden: int, size: int, layout: Layout) -> Linears:
    return {
        f"{prefix}.{{gate,up}}_proj": (size, hidden, layout),
        f"{prefix}.down_proj": (hidden, size, layout),
    }


def attention_of(prefix: str, hidden: int, query: int, keys: int, layout: Layout) -> Linears:
    return {
        f"{prefix}.q_proj": (query, hidden, layout),
        f"{prefix}.{{k,v}}_proj": (keys, hidden, layout),
        f"{prefix}.o_proj": (hidden, query, layout),
    }
