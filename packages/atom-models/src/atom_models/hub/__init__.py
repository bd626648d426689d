"""From a model's name to its files: names known here, folders, ``.gguf`` files, Hugging Face ids. Free of torch."""

from __future__ import annotations

from atom_models.hub.cached import CachedModel, cached_models, find_cached
from atom_models.hub.errors import ModelNotFoundError
from atom_models.hub.known import KnownModel, known_models
from atom_models.hub.resolve import resolve_config, resolve_model
from atom_models.settings import models_cache_dir

__all__ = [
    "CachedModel",
    "KnownModel",
    "ModelNotFoundError",
    "cached_models",
    "find_cached",
    "known_models",
    "models_cache_dir",
    "resolve_config",
    "resolve_model",
]
