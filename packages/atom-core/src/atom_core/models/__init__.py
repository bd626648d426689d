"""What front ends need to know of models before an engine runs: names, files, sizes. Lazily imported.

Everything but `model_requirements` and what goes with it is torch-free: a plan builds the model that it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

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

__getattr__ = lazy_names(__name__)
