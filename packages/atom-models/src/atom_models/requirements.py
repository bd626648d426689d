"""What a model needs, computed from its config alone. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.architectures.registry import check_architecture
from atom_models.checkpoint import Checkpoint, CheckpointError

_WEIGHT_DTYPES = {"float32": 4, "bfloat16": 2, "int8": 1}
_CACHE_DTYPES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class ModelRequirements:
    """Sizes of a model.

    Attributes:
        architecture: as the checkpoint names it.
        num_parameters: tied embeddings counted once.
        num_linear_parameters: of these, what "int8" quantizes (neither embedding nor head).
        num_layers, num_attention_layers: in all, and with a cache.
        max_model_len: longest context in tokens.
        weight_bytes: by dtype of the weights; "int8" leaves embedding, head and norms in bfloat16.
        kv_bytes_per_token: over all layers, by dtype of the cache.
    """

    architecture: str
    num_parameters: int
    num_linear_parameters: int
    num_layers: int
    num_attention_layers: int
    max_model_len: int
    weight_bytes: Mapping[str, int]
    kv_bytes_per_token: Mapping[str, int]


def model_requirements(checkpoint: Checkpoint) -> ModelRequirements:
    """Numbers for planning; no weight is read.

    Raises:
        UnsupportedArchitectureError: the architecture is not implemented.
        CheckpointError: the config lacks a number.
    """
    check_architecture(checkpoint.architecture)
    counted = _COUNTERS[checkpoint.architecture](checkpoint.text_config)
    parameters, linear = counted["parameters"], counted["linear"]
    weight_bytes = {name: parameters * size for name, size in _WEIGHT_DTYPES.items()}
    # One byte for each weight and four for the scale of each output channel.
    weight_bytes["int8"] = (parameters - linear) * 2 + linear + 4 * counted["linear_outputs"]
    return ModelRequirements(
        architecture=checkpoint.architecture,
        num_parameters=parameters,
        num_linear_parameters=linear,
        num_layers=counted["layers"],
        num_attention_layers=counted["layers"],
        max_model_len=checkpoint.max_model_len,
        weight_bytes=weight_bytes,
        kv_bytes_per_token={name: counted["cached"] * size for name, size in _CACHE_DTYPES.items()},
    )


def _llama(config: Mapping[str, Any]) -> dict[str, int]:
    hidden, vocab, layers = (_size(config, name) for name in ("hidden_size", "vocab_size", "num_hidden_layers"))
    heads, intermediate = _size(config, "num_attention_heads"), _size(config, "intermediate_size")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, kv_heads * head_dim
    attention_outputs, mlp_outputs = q + 2 * kv + hidden, 2 * intermediate + hidden
    linear = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * intermediate
    biases = attention_outputs * bool(config.get("attention_bias")) + mlp_outputs * bool(config.get("mlp_bias"))
    tables = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return {
        "parameters": tables + layers * (linear + biases + 2 * hidden) + hidden,
        "linear": layers * linear,
        "linear_outputs": layers * (attention_outputs + mlp_outputs),
        "layers": layers,
        "cached": layers * 2 * kv,
    }


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r}, not a positive integer")
    return value


_COUNTERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, int]]] = {"LlamaForCausalLM": _llama}
