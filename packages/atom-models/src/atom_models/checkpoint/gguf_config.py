"""What a GGUF header says about the model, in Hugging Face's words."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_file import GGUFFile

# general.architecture -> (model_type, architectures[0])
ARCHITECTURES = {"llama": ("llama", "LlamaForCausalLM")}
_ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


def gguf_config(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, generation_config) with Hugging Face field names.

    Raises:
        CheckpointError: the header lacks a number that the model needs, or its architecture has no name mapping here.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: GGUF files of architecture {architecture!r} cannot be loaded; "
            f"supported: {', '.join(ARCHITECTURES)}. Use the model's safetensors checkpoint instead"
        )
    model_type, class_name = ARCHITECTURES[architecture]
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_act": "silu",
        "dtype": "float32" if _largest_type(file) == "F32" else "bfloat16",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_size": _number(file, architecture, "embedding_length"),
        "intermediate_size": _number(file, architecture, "feed_forward_length"),
        "num_hidden_layers": _number(file, architecture, "block_count"),
        "num_attention_heads": (num_heads := _number(file, architecture, "attention.head_count")),
        "num_key_value_heads": _number(file, architecture, "attention.head_count_kv", num_heads),
        "rms_norm_eps": _number(file, architecture, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _number(file, architecture, "context_length"),
        "vocab_size": _vocab_size(file, architecture),
    }
    if num_heads < 1:
        raise CheckpointError(f"{file.path}: {architecture}.attention.head_count is {num_heads}")
    default_head_dim = config["hidden_size"] // num_heads
    config["head_dim"] = _number(file, architecture, "attention.key_length", default_head_dim)
    config["rope_parameters"] = _rope(file, architecture, config)
    tokens = {
        f"{name}_token_id": file.metadata[key]
        for name, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
        )
        if key in file.metadata
    }
    # Models that end a turn and a text with different tokens name the other ones too.
    extra = [
        file.metadata[f"tokenizer.ggml.{key}"]
        for key in ("eot_token_id", "eom_token_id")
        if f"tokenizer.ggml.{key}" in file.metadata
    ]
    generation = dict(tokens)
    if extra and "eos_token_id" in tokens:
        generation["eos_token_id"] = list(dict.fromkeys([tokens["eos_token_id"], *extra]))
    return {**config, **tokens}, generation


def _number(file: GGUFFile, architecture: str, key: str, default: Any = None) -> Any:
    value = file.metadata.get(f"{architecture}.{key}", default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{file.path}: the header's {architecture}.{key} is {value!r}, not a number")
    return value


def _vocab_size(file: GGUFFile, architecture: str) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    return _number(file, architecture, "vocab_size")


def _rope(file: GGUFFile, architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    metadata, prefix = file.metadata, f"{architecture}.rope."
    rope: dict[str, Any] = {"rope_theta": float(metadata.get(prefix + "freq_base", 10000.0)), "rope_type": "default"}
    scaling = metadata.get(prefix + "scaling.type", "none")
    if scaling not in _ROPE_TYPES:
        raise CheckpointError(f"{file.path}: {prefix}scaling.type is {scaling!r}; supported: {', '.join(_ROPE_TYPES)}")
    rope["rope_type"] = _ROPE_TYPES[scaling]
    if scaling != "none":
        rope["factor"] = float(metadata.get(prefix + "scaling.factor", 1.0))
        original = metadata.get(prefix + "scaling.original_context_length")
        if original is not None:
            rope["original_max_position_embeddings"] = original
    if "rope_freqs.weight" in file.tensors:
        # Llama 3's scaling is stored as a divisor for each frequency: the same rule as longrope's factors, and exact.
        tensor = file.tensors["rope_freqs.weight"]
        if tensor.type_name != "F32":
            raise CheckpointError(f"{file.path}: rope_freqs.weight is {tensor.type_name}, not F32")
        divisors = file.read(tensor).cast("f").tolist()
        rope.update(
            rope_type="longrope",
            short_factor=divisors,
            long_factor=divisors,
            factor=1.0,
            attention_factor=1.0,
            original_max_position_embeddings=config["max_position_embeddings"],
        )
    dimensions = metadata.get(prefix + "dimension_count", config["head_dim"])
    if dimensions != config["head_dim"]:
        rope["partial_rotary_factor"] = dimensions / config["head_dim"]
    return rope


def _largest_type(file: GGUFFile) -> str | None:
    largest = max(file.tensors.values(), key=lambda tensor: tensor.num_bytes, default=None)
    return largest.type_name if largest else None
