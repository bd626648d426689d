"""What is on this machine already. Nothing here asks the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atom_models.hub import hugging_face, wheel
from atom_models.hub.known import known_model, known_models


@dataclass(frozen=True)
class CachedModel:
    """A model that was downloaded: its name, its file or folder, its size in bytes."""

    name: str
    path: Path
    size: int


def cached_models() -> list[CachedModel]:
    """Downloaded models: those known by name first, then those in Hugging Face's cache."""
    found = []
    for model in known_models():
        path = wheel.cached_file(model)
        if path:
            found.append(CachedModel(model.name, path, model.file_size))
    return found + [CachedModel(*entry) for entry in hugging_face.scan()]


def find_cached(name: str) -> Path | None:
    """Where `name` (known, a path, or a Hugging Face id) lies on this machine, or None."""
    model = known_model(name)
    if model:
        return wheel.cached_file(model)
    path = Path(name).expanduser()
    if path.exists():
        return path
    return hugging_face.find(name) if hugging_face.is_hugging_face_id(name) else None
