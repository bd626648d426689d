"""Models by Hugging Face id: weights as safetensors, configuration and tokenizer, nothing that would run as code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from atom_models.checkpoint import quantization_files
from atom_models.hub.errors import ModelNotFoundError

ALLOWED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
CONFIGS = ("config.json", "generation_config.json", *quantization_files.NAMES)
IGNORED = ("original/*", "onnx/*", "consolidated*.safetensors")

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hugging_face_id(name: str) -> bool:
    """Whether `name` has the form ``owner/model``."""
    return _ID.fullmatch(name) is not None


def fetch(name: str, revision: str | None, *, only_config: bool = False) -> Path:
    """The folder of a snapshot, downloaded if need be; files that are here already are not asked for again.

    Args:
        only_config: leave weights and tokenizer where they are.

    Raises:
        ModelNotFoundError: no such model or revision, no access, or no network and not in the cache.
    """
    from huggingface_hub import errors, snapshot_download

    wanted = CONFIGS if only_config else ALLOWED
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*wanted], ignore_patterns=[*IGNORED]))
    except Exception as error:  # network clients differ between versions of huggingface_hub, and so do their errors
        known = (
            (errors.GatedRepoError, "access to it must be granted", "accept its terms on its page and set HF_TOKEN"),
            (errors.RevisionNotFoundError, f"it has no revision {revision!r}", "leave --revision away or name another"),
            (
                errors.RepositoryNotFoundError,
                "Hugging Face has no such public model, and no folder of that name is here",
                "check the spelling, or set HF_TOKEN",
            ),
            (
                Exception,
                "it is not on this machine and Hugging Face cannot be reached",
                "connect to the network, or give --model a local folder or .gguf file",
            ),
        )
        reason, advice = next((reason, advice) for kind, reason, advice in known if isinstance(error, kind))
        raise _failure(name, reason, advice, error) from error


def find(name: str, revision: str | None = None) -> Path | None:
    """The folder of a snapshot that is here already, or None. Asks no network."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (OSError, ValueError):  # LocalEntryNotFoundError is an OSError in every version
        return None
    return folder if _is_whole(folder) else None


def scan() -> Iterator[tuple[str, Path, int]]:
    """(id, folder, bytes) of each model in Hugging Face's cache that has a configuration and weights."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: revision.last_modified)
        if _is_whole(newest.snapshot_path):
            yield repo.repo_id, newest.snapshot_path, newest.size_on_disk


def _is_whole(folder: Path) -> bool:
    """Whether there are weights: a plan downloads the configuration alone."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _failure(name: str, reason: str, advice: str, error: Exception) -> ModelNotFoundError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = lines[0][:200] if lines else type(error).__name__
    return ModelNotFoundError(f"model {name!r}: {reason} ({cause}); {advice}")
