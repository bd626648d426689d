"""`Task`: an adapter that a checkpoint comes with, for what its publisher calls a task. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_models.adapters.adapter_config import CONFIG, AdapterConfig
from atom_models.adapters.errors import AdapterError
from atom_models.architectures.registry import has_tasks
from atom_models.checkpoint import Checkpoint
from atom_models.checkpoint.weight_names import weight_names

# What comes behind the name of a module whose adapters, those of all tasks, lie among the weights of the checkpoint.
BESIDE = ".parametrizations.weight.0.lora_"
# Folders beside the weights, as transformers has them, and the tasks whose adapters are in there.
_FOLDERS = {
    "retrieval_query": "retrieval.query",
    "retrieval_passage": "retrieval.passage",
    "separation": "separation",
    "classification": "classification",
    "text_matching": "text-matching",
}
_MOST_RANK = 512


@dataclass(frozen=True)
class Task:
    """Where the adapter of a task lies.

    Attributes:
        name: what requests call it.
        folder: what PEFT saved; or the checkpoint's own folder, where the adapters of all tasks lie among its weights.
        rank: the largest of its matrices.
    """

    name: str
    folder: Path
    rank: int


def read_tasks(checkpoint: Checkpoint) -> tuple[Task, ...]:
    """The tasks that a checkpoint has adapters for; none where its weights are one model's alone.

    Raises:
        AdapterError: it says what cannot be meant, or has an adapter that cannot be served.
    """
    if not has_tasks(checkpoint.architecture):
        return ()
    folder = checkpoint.path
    if any(BESIDE in name for name in weight_names(folder)):
        names, rank = _names(checkpoint), number_of(checkpoint, "lora_rank")
        return tuple(Task(name, folder, int(rank)) for name in names)
    found = {name: folder / own for own, name in _FOLDERS.items() if (folder / own / CONFIG).is_file()}
    return tuple(Task(name, own, AdapterConfig.read(own, max_rank=_MOST_RANK).rank) for name, own in found.items())


def place_of(checkpoint: Checkpoint, task: str) -> int:
    """Which one of the adapters among the weights is that of a task."""
    return _names(checkpoint).index(task)


def number_of(checkpoint: Checkpoint, field: str) -> float:
    """A number above 0 of the checkpoint's config, about the adapters among its weights."""
    value = checkpoint.config.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_RANK:
        raise AdapterError(f"{checkpoint.path}/config.json: {field} is {value!r}; it must be above 0, up to 512")
    return value


def _names(checkpoint: Checkpoint) -> list[str]:
    names: Any = checkpoint.config.get("lora_adaptations")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise AdapterError(
            f"{checkpoint.path}/config.json: lora_adaptations is {str(names)[:80]!r}; it must list the tasks whose "
            "matrices are among the weights"
        )
    return names
