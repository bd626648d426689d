"""Brings `config.json` of either generation of transformers to one form. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

# Old spellings of rope types and what they became.
_ROPE_NAMES = {"su": "longrope", "ntk": "dynamic", "mrope": "default"}
_DTYPES = {"float": "float32", "half": "float16"}
# What text_config leaves out where it is as in transformers, by its model_type.
_LEFT_OUT: Mapping[str, Mapping[str, int]] = {
    "clip_text_model": {"vocab_size": 49_408, "max_position_embeddings": 77, "eos_token_id": 49_407},
    "siglip_text_model": {"vocab_size": 32_000, "max_position_embeddings": 64, "pad_token_id": 1},
}

_CLASSES_OF_JINA = {
    "XLMRobertaLoRA": "JinaEmbeddingsV3Model",
    "XLMRobertaModel": "JinaEmbeddingsV3Model",
    "XLMRobertaForMaskedLM": "JinaEmbeddingsV3ForMaskedLM",
    "XLMRobertaForSequenceClassification": "JinaEmbeddingsV3ForSequenceClassification",
}


def normalize_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with `rope_parameters` for `rope_theta` and `rope_scaling`, and `dtype` for `torch_dtype`.

    Nested `text_config`s are normalized as well, and share what either level says of dtype, tied embeddings,
    quantization and projection. Rope parameters given for each layer type stay a mapping of mappings.

    Raises:
        CheckpointError: a field has a type that cannot be meant.
    """
    normalized = dict(config)
    dtype = normalized.pop("torch_dtype", None) or normalized.get("dtype") or normalized.pop("dtype", None)
    if dtype is not None:
        if not isinstance(dtype, str):
            raise CheckpointError(f"config.json: dtype is {dtype!r}, not a name such as bfloat16")
        name = dtype.removeprefix("torch.")
        normalized["dtype"] = _DTYPES.get(name, name)
    nested = normalized.get("text_config")
    if isinstance(nested, Mapping):
        text = normalize_config({**_LEFT_OUT.get(str(nested.get("model_type")), {}), **nested})
        for name in ("dtype", "tie_word_embeddings"):
            if name in normalized:
                text.setdefault(name, normalized[name])
        # Here the inner one is of a text model that was saved alone.
        if normalized.get("projection_dim") is not None:
            text["projection_dim"] = normalized["projection_dim"]
        if normalized.get("quantization_config") is None and text.get("quantization_config") is not None:
            normalized["quantization_config"] = text["quantization_config"]
        normalized["text_config"] = text
    if config.get("model_type") == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        normalized |= _as_jina_embeddings_v3(config)
    if any(key in normalized for key in ("rope_parameters", "rope_theta", "rope_scaling")):
        normalized["rope_parameters"] = _rope_parameters(normalized)
        normalized.pop("rope_theta", None)
        normalized.pop("rope_scaling", None)
    return normalized


def _as_jina_embeddings_v3(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which transformers knows XLM-R with rotated positions, which Jina's own code calls XLM-R."""
    names = config.get("architectures")
    own = [_CLASSES_OF_JINA.get(name, name) for name in names] if isinstance(names, list) else names
    return {"architectures": own, "rope_parameters": {"rope_theta": config.get("rotary_emb_base", 10_000.0)}}


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json: rope_parameters is {given!r}, not an object")
    if given and all(isinstance(value, Mapping) for value in given.values()):
        return {layer_type: _one_rope(value, config) for layer_type, value in given.items()}
    return _one_rope(given, config)


def _one_rope(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(given)
    old_name = rope.pop("type", None)
    name = rope.get("rope_type") or old_name or "default"
    rope["rope_type"] = _ROPE_NAMES.get(name, name)
    if config.get("rope_theta") is not None:
        rope.setdefault("rope_theta", config["rope_theta"])
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if config.get(key) is not None:
            rope.setdefault(key, config[key])
    if config.get("rotary_dim") and config.get("head_dim"):
        rope.setdefault("partial_rotary_factor", config["rotary_dim"] / config["head_dim"])
    return rope
