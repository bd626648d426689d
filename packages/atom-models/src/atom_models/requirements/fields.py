"""Numbers out of `config.json`, under the names that families give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint import CheckpointError

Config = Mapping[str, Any]


def size(config: Config, *names: str) -> int:
    """The positive integer under the first of `names` that is there.

    Raises:
        CheckpointError: none is, or it is no positive integer.
    """
    name = next((name for name in names if config.get(name) is not None), names[0])
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r}, not a positive integer")
    return value


def head_counts(config: Config) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of ordinary attention."""
    heads = size(config, "num_attention_heads")
    kv_heads = size(config, "num_key_value_heads", "num_attention_heads")
    return heads, kv_heads, config.get("head_dim") or size(config, "hidden_size") // heads


def is_sparse(config: Config, layer_id: int) -> bool:
    """Whether a layer of a mixture of experts has experts; each family has a way of its own to say so."""
    types = config.get("mlp_layer_types")
    if types is not None:
        return types[layer_id] == "sparse"
    if layer_id in (config.get("mlp_only_layers") or ()) or layer_id < (config.get("first_k_dense_replace") or 0):
        return False
    if layer_id % (config.get("moe_layer_freq") or 1):
        return False
    return (layer_id + 1) % (config.get("decoder_sparse_step") or 1) == 0
