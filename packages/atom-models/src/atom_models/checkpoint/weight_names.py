"""Names of the weights in a folder, and what they tell: no tensor is read. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

INDEX = "model.safetensors.index.json"
# What comes before the names of a decoder inside a causal language model.
DECODER_PREFIX = "model."
OwnNames = str | tuple[str, ...] | None
"""A stored tensor's name in a model; several names share its rows evenly; None where it is another model's."""


def weight_names(folder: Path) -> frozenset[str]:
    """Names of all tensors, from the index or the files; none where none can be read, which the loader reports."""
    from safetensors import SafetensorError, safe_open

    try:
        if (folder / INDEX).is_file():
            return frozenset(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
        names: set[str] = set()
        for file in folder.glob("*.safetensors"):
            with safe_open(file, framework="np") as tensors:
                names.update(tensors.keys())
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return frozenset()
    return frozenset(names)


def is_decoder_alone(names: Collection[str]) -> bool:
    """Whether these are the weights of a decoder that was saved by itself, as embedding models are."""
    return "embed_tokens.weight" in names
