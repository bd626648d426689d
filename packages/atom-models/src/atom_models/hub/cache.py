"""What has been pulled already: known models in our cache, repositories in Hugging Face's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atom_models.hub.catalog import KnownModel, find_known, known_models
from atom_models.settings import models_cache_dir


@dataclass(frozen=True)
class CachedModel:
    """A model on this machine: what to call it, where it lies, its bytes."""

    name: str
    path: Path
    size: int


def cached_path(model: KnownModel) -> Path:
    """Where a known model lies once it is pulled."""
    return models_cache_dir() / model.name / model.file_name


def find_cached(name: str) -> Path | None:
    """The path of a known model that is pulled already, else None. Never downloads."""
    model = find_known(name)
    if model is None:
        return None
    path = cached_path(model)
    # Files are moved into place whole and checked; a size that differs is somebody's edit, and is pulled again.
    return path if path.is_file() and path.stat().st_size == model.size else None


def cached_models() -> list[CachedModel]:
    """Every model that needs no download, by name."""
    ours = [
        CachedModel(model.name, path, model.size)
        for model in known_models()
        if (path := find_cached(model.name)) is not None
    ]
    return ours + _hugging_face_models()


def _hugging_face_models() -> list[CachedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [repository for repository in repositories if repository.repo_type == "model"]
    return [
        CachedModel(model.repo_id, Path(model.repo_path), model.size_on_disk)
        for model in sorted(models, key=lambda model: model.repo_id)
    ]
