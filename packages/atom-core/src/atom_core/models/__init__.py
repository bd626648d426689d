"""What front ends need to know of models before an engine runs: names, files, sizes. Lazily imported, torch-free."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_models import CheckpointError, model_requirements, open_checkpoint, resolve_model
    from atom_models.hub import cached_models, find_cached, known_models, models_cache_dir

_HOMES = {
    "CheckpointError": "atom_models",
    "cached_models": "atom_models.hub",
    "find_cached": "atom_models.hub",
    "known_models": "atom_models.hub",
    "model_requirements": "atom_models",
    "models_cache_dir": "atom_models.hub",
    "open_checkpoint": "atom_models",
    "resolve_model": "atom_models",
}

__all__ = [
    "CheckpointError",
    "cached_models",
    "find_cached",
    "known_models",
    "model_requirements",
    "models_cache_dir",
    "open_checkpoint",
    "resolve_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
