"""Layers, quantization, weight loading and model architectures. Torch stays out until something needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

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
    from atom_models.model import build_model, mixer_layers, num_idle_weights, sizes_told_apart
    from atom_models.requirements import ModelRequirements, model_requirements
    from atom_models.weights import load_dummy_weights, load_named_weights, load_weights

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
    "sizes_told_apart",
    "supported_architectures",
]

__getattr__ = lazy_names(__name__)
