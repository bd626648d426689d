"""Architectures by the name that checkpoints give them. Torch-free until one is loaded."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_models.architectures.protocol import CausalLM

# Name in config.json -> module of this package and class in it.
_ARCHITECTURES = {
    "Gemma3ForCausalLM": ("gemma3", "Gemma3ForCausalLM"),
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("mistral", "MistralForCausalLM"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
}


class UnsupportedArchitectureError(ValueError):
    """A checkpoint's architecture is not implemented; the message names those that are, and the nearest."""


def supported_architectures() -> tuple[str, ...]:
    """Names of all architectures that can be built."""
    return tuple(sorted(_ARCHITECTURES))


def check_architecture(name: str) -> None:
    """Raises UnsupportedArchitectureError unless `find_architecture` would find it."""
    if name in _ARCHITECTURES:
        return
    nearest = difflib.get_close_matches(name, _ARCHITECTURES, n=1, cutoff=0.6)
    hint = f" The nearest is {nearest[0]}." if nearest else ""
    raise UnsupportedArchitectureError(
        f"the architecture {name} is not supported; supported: {', '.join(supported_architectures())}.{hint}"
    )


def find_architecture(name: str) -> type[CausalLM]:
    """The class of an architecture.

    Raises:
        UnsupportedArchitectureError: it is not implemented.
    """
    check_architecture(name)
    module, class_name = _ARCHITECTURES[name]
    return getattr(importlib.import_module(f"atom_models.architectures.{module}"), class_name)
