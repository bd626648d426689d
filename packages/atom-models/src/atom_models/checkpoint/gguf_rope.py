"""Rotary parameters out of a GGUF header."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_header import GGUFHeader

_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
# Key after rope.scaling. -> what YaRN calls it.
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_attn_factor": "attention_factor"}


def rope_parameters(header: GGUFHeader, config: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` for a config that has its other fields; parameters that it already has are kept.

    Raises:
        CheckpointError: the header names a scaling that nothing here computes.
    """
    rope = {"rope_theta": float(header.number("rope.freq_base", 10000.0)), **_scaling(header)}
    rope |= config.get("rope_parameters", {})
    if "rope_freqs.weight" in header.file.tensors:
        rope.update(_divisors(header, config["max_position_embeddings"]))
    rotary_dim, head_dim = header.optional_number("rope.dimension_count"), config["head_dim"]
    if rotary_dim and head_dim and rotary_dim != head_dim:
        rope["partial_rotary_factor"] = rotary_dim / head_dim
    return rope


def _scaling(header: GGUFHeader) -> dict[str, Any]:
    scaling = header.get("rope.scaling.type", "none")
    if scaling not in _TYPES:
        raise CheckpointError(
            f"{header.file.path}: {header.architecture}.rope.scaling.type is {scaling!r}; "
            f"supported: {', '.join(_TYPES)}"
        )
    if scaling == "none":
        return {"rope_type": "default"}
    rope = {"rope_type": _TYPES[scaling], "factor": float(header.number("rope.scaling.factor", 1.0))}
    original = header.optional_number("rope.scaling.original_context_length")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    for key, field in _YARN.items():
        value = header.optional_number(f"rope.scaling.{key}") if scaling == "yarn" else None
        if value is not None:
            rope[field] = value
    return rope


def _divisors(header: GGUFHeader, max_position_embeddings: int) -> dict[str, Any]:
    """Llama 3's scaling is stored as a divisor for each frequency: the same rule as longrope's factors, and exact."""
    tensor = header.file.tensors["rope_freqs.weight"]
    if tensor.type_name != "F32":
        raise CheckpointError(f"{header.file.path}: rope_freqs.weight is {tensor.type_name}, not F32")
    divisors = header.file.read(tensor).cast("f").tolist()
    return {
        "rope_type": "longrope",
        "short_factor": divisors,
        "long_factor": divisors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": max_position_embeddings,
    }
