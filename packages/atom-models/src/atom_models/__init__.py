"""Layers, quantization schemes, weight loading and model architectures. Torch stays out until something needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_models.architectures.registry import (
        UnsupportedArchitectureError,
        describe_architecture,
        supported_architectures,
    )
    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint, CheckpointError, open_checkpoint
    from atom_models.hub import resolve_model
    from atom_models.loaded_model import LoadedModel, load_model
    from atom_models.model import build_model, mixer_layers, num_idle_weights
    from atom_models.requirements import ModelRequirements, model_requirements
    from atom_models.weights import load_dummy_weights, load_named_weights, load_weights

_HOMES = {
    "BuildContext": "atom_models.build_context",
    "Checkpoint": "atom_models.checkpoint",
    "CheckpointError": "atom_models.checkpoint",
    "LoadedModel": "atom_models.loaded_model",
    "ModelRequirements": "atom_models.requirements",
    "UnsupportedArchitectureError": "atom_models.architectures.registry",
    "mixer_layers": "atom_models.model",
    "build_model": "atom_models.model",
    "describe_architecture": "atom_models.architectures.registry",
    "load_dummy_weights": "atom_models.weights",
    "load_model": "atom_models.loaded_model",
    "load_named_weights": "atom_models.weights",
    "load_weights": "atom_models.weights",
    "model_requirements": "atom_models.requirements",
    "num_idle_weights": "atom_models.model",
    "open_checkpoint": "atom_models.checkpoint",
    "resolve_model": "atom_models.hub",
    "supported_architectures": "atom_models.architectures.registry",
}

__all__ = [
    "BuildContext",
    "Checkpoint",
    "CheckpointError",
    "LoadedModel",
    "ModelRequirements",
    "UnsupportedArchitectureError",
    "build_model",
    "describe_architecture",
    "load_dummy_weights",
    "load_model",
    "load_named_weights",
    "load_weights",
    "mixer_layers",
    "model_requirements",
    "num_idle_weights",
    "open_checkpoint",
    "resolve_model",
    "supported_architectures",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
