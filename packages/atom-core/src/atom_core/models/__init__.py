"""What front ends need to know of models before an engine runs: names, files, sizes. Lazily imported.

Everything but `model_requirements` and what goes with it is torch-free: a plan builds the model that it counts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_models import (
        CheckpointError,
        describe_architecture,
        model_requirements,
        open_checkpoint,
        resolve_model,
        supported_architectures,
    )
    from atom_models.architectures.registry import Architecture
    from atom_models.hub import cached_models, find_cached, known_models, models_cache_dir, resolve_config
    from atom_models.requirements import (
        DEVICE_COUNTS,
        Accelerator,
        ModelRequirements,
        Placement,
        find_accelerators,
        place,
    )

_HOMES = {
    "Accelerator": "atom_models.requirements",
    "Architecture": "atom_models.architectures.registry",
    "CheckpointError": "atom_models",
    "DEVICE_COUNTS": "atom_models.requirements",
    "ModelRequirements": "atom_models.requirements",
    "Placement": "atom_models.requirements",
    "cached_models": "atom_models.hub",
    "describe_architecture": "atom_models",
    "find_accelerators": "atom_models.requirements",
    "find_cached": "atom_models.hub",
    "known_models": "atom_models.hub",
    "model_requirements": "atom_models",
    "models_cache_dir": "atom_models.hub",
    "open_checkpoint": "atom_models",
    "place": "atom_models.requirements",
    "resolve_config": "atom_models.hub",
    "resolve_model": "atom_models",
    "supported_architectures": "atom_models",
}

__all__ = [
    "DEVICE_COUNTS",
    "Accelerator",
    "Architecture",
    "CheckpointError",
    "ModelRequirements",
    "Placement",
    "cached_models",
    "describe_architecture",
    "find_accelerators",
    "find_cached",
    "known_models",
    "model_requirements",
    "models_cache_dir",
    "open_checkpoint",
    "place",
    "resolve_config",
    "resolve_model",
    "supported_architectures",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
