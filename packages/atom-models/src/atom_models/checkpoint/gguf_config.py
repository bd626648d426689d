"""What a GGUF header says about the model, in Hugging Face's words."""

from __future__ import annotations

import logging
from typing import Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_architectures import find_gguf_architecture
from atom_models.checkpoint.gguf_file import GGUFFile
from atom_models.checkpoint.gguf_header import GGUFHeader
from atom_models.checkpoint.gguf_rope import rope_parameters
from atom_models.checkpoint.gguf_special_tokens import special_tokens

MAX_BLOCKS = 4096

logger = logging.getLogger(__name__)


def gguf_config(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, generation_config) with Hugging Face field names.

    Raises:
        CheckpointError: the header lacks a number that the model needs, or its architecture has no table here.
    """
    architecture, header = find_gguf_architecture(file), GGUFHeader(file)
    _check_parts(file)
    config = _shared_fields(header) | architecture.config(header)
    config["rope_parameters"] = rope_parameters(header, config)
    tokens, generation = special_tokens(file)
    if unread := header.unread():
        logger.warning("%s: these keys are unknown and have no effect: %s", file.path, ", ".join(unread))
    present = {field: value for field, value in config.items() if value is not None}
    return {**present, **tokens}, generation


def _shared_fields(header: GGUFHeader) -> dict[str, Any]:
    file, heads = header.file, header.number("attention.head_count")
    blocks, name = header.number("block_count"), header.architecture
    if heads < 1:
        raise CheckpointError(f"{file.path}: {name}.attention.head_count is {heads}")
    if not 1 <= blocks <= MAX_BLOCKS:
        raise CheckpointError(f"{file.path}: {name}.block_count is {blocks}, not 1 to {MAX_BLOCKS}")
    # Blocks behind the last layer predict further tokens.
    prediction_layers = header.number("nextn_predict_layers", 0)
    hidden_size = header.number("embedding_length")
    return {
        "hidden_act": "silu",
        "dtype": "float32" if _largest_type(file) == "F32" else "bfloat16",
        "attention_bias": header.has("attn_q.bias"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_size": hidden_size,
        "intermediate_size": header.number("feed_forward_length"),
        "num_hidden_layers": blocks - prediction_layers,
        "num_nextn_predict_layers": prediction_layers or None,
        "num_attention_heads": heads,
        "num_key_value_heads": header.number("attention.head_count_kv", heads),
        "head_dim": header.number("attention.key_length", hidden_size // heads),
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": header.number("context_length"),
        "vocab_size": _vocab_size(header),
    }


def _check_parts(file: GGUFFile) -> None:
    parts = file.metadata.get("split.count", 1)
    if parts != 1:
        raise CheckpointError(
            f"{file.path} is one of {parts} parts of a model; join them with `llama-gguf-split --merge`, and give "
            "the file that comes out"
        )


def _vocab_size(header: GGUFHeader) -> int:
    embedding = header.file.tensors.get("token_embd.weight")
    return header.number("vocab_size") if embedding is None else embedding.shape[0]


def _largest_type(file: GGUFFile) -> str | None:
    largest = max(file.tensors.values(), key=lambda tensor: tensor.num_bytes, default=None)
    return largest.type_name if largest else None
