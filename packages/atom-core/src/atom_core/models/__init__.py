"""What front ends need to know of models without an engine: names, files, sizes, accuracy. Lazily imported.

Everything but `model_requirements`, which builds the model that it counts, and `load_model` is torch-free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_models import (
        CheckpointError,
        LoadedModel,
        describe_architecture,
        load_model,
        model_requirements,
        open_checkpoint,
        resolve_model,
        supported_architectures,
    )
    from atom_models.accuracy import Accuracy, AccuracyError, ReferenceModel, windows_of
    from atom_models.architectures.registry import Architecture
    from atom_models.fallback.choice import choose_implementation
    from atom_models.hub import cached_models, find_cached, known_models, models_cache_dir, resolve_config
    from atom_models.model import stored_quantization
    from atom_models.requirements import (
        DEVICE_COUNTS,
        PLANNED_FLOAT8,
        Accelerator,
        LayerWeights,
        ModelRequirements,
        Placement,
        UnknownAcceleratorError,
        find_accelerators,
        layer_weights,
        place,
    )
    from atom_models.simulation import (
        Device,
        Prediction,
        Ranks,
        System,
        UnknownSystemError,
        find_system,
        predict,
        scaling_of,
    )
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.videos import VideoSpec

__all__ = [
    "DEVICE_COUNTS",
    "PLANNED_FLOAT8",
    "Accelerator",
    "Accuracy",
    "AccuracyError",
    "Architecture",
    "CheckpointError",
    "Device",
    "LayerWeights",
    "LoadedModel",
    "ModelRequirements",
    "Placement",
    "Prediction",
    "Ranks",
    "ReferenceModel",
    "System",
    "UnknownAcceleratorError",
    "UnknownSystemError",
    "VideoSpec",
    "VisionSpec",
    "cached_models",
    "choose_implementation",
    "describe_architecture",
    "find_accelerators",
    "find_cached",
    "find_system",
    "known_models",
    "layer_weights",
    "load_model",
    "model_requirements",
    "models_cache_dir",
    "open_checkpoint",
    "place",
    "predict",
    "resolve_config",
    "resolve_model",
    "scaling_of",
    "stored_quantization",
    "supported_architectures",
    "windows_of",
]

__getattr__ = lazy_names(__name__)
