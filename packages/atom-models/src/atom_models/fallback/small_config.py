"""The config of a small model of the same class, for a trial."""

from __future__ import annotations

from typing import Any

# The most that a trial takes of each field; what is smaller stays as it is. In a spelling of several publishers each.
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 4),
    **dict.fromkeys(("hidden_size", "n_embd"), 64),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim"), 48),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 128),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 1),
    # Shorter than the sequences of a trial, so that a window that is not kept shows.
    "sliding_window": 5,
    "max_position_embeddings": 256,
}
# Patches on each side of the picture of a trial.
PATCHES_OF_SIDE = 2
# Fields with an entry for each layer.
_PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "attn_types")


def small_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a small config: what `config.json` has, with sizes that run in milliseconds."""
    small = _smaller(fields)
    text, vision = fields.get("text_config"), fields.get("vision_config")
    if isinstance(text, dict):
        small["text_config"] = _smaller(text)
        last = small["text_config"].get("vocab_size", 1) - 1
        small |= {name: last for name in ("image_token_id", "image_token_index") if isinstance(small.get(name), int)}
    if isinstance(vision, dict):
        small["vision_config"] = tower = _smaller(vision)
        if "num_hidden_layers" in vision:
            tower["num_hidden_layers"] = vision["num_hidden_layers"]  # features may be those of any layer
        if isinstance(size := vision.get("patch_size"), int) and "image_size" in vision:
            tower["image_size"] = PATCHES_OF_SIDE * size
    return small


def _smaller(fields: dict[str, Any]) -> dict[str, Any]:
    small = dict(fields)
    for name, most in _MOST.items():
        value = small.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            small[name] = most
        elif isinstance(value, list) and name.endswith("_token_id"):
            small[name] = [1]
    heads, layers = small.get("num_attention_heads"), small.get("num_hidden_layers")
    # One head for keys and values, or as many as queries have, is a kind of model of its own.
    if fields.get("num_key_value_heads") == fields.get("num_attention_heads") and heads is not None:
        small["num_key_value_heads"] = heads
    if layers is not None:
        small |= {name: small[name][:layers] for name in _PER_LAYER if isinstance(small.get(name), list)}
    kinds = small.get("layer_types")
    if isinstance(kinds, list) and len({*(fields["layer_types"] or ())}) > len({*kinds}):
        missing = [kind for kind in dict.fromkeys(fields["layer_types"]) if kind not in kinds]
        small["layer_types"] = [*kinds[: len(kinds) - len(missing)], *missing]
    return small
