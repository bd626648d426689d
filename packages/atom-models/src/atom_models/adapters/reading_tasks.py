"""Reads the adapter of a task from the weights of a checkpoint, where one tensor holds the matrices of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.owners import OwnModules, among_owners
from atom_models.adapters.tasks import BESIDE, number_of, place_of
from atom_models.checkpoint import CheckpointError, open_checkpoint
from atom_models.weights.safetensors_source import SafetensorsSource, open_safetensors

Shapes = Mapping[str, tuple[int, int]]


def read_task(folder: Path, task: str, shapes: Shapes, own_modules: OwnModules) -> Adapter:
    """The adapter of a task.

    Args:
        folder: the checkpoint's.
        shapes: inputs and outputs, over all ranks, of what may have one, by its name.
        own_modules: names it.

    Raises:
        AdapterError: a tensor is missing or does not fit the model.
    """
    try:
        checkpoint, source = open_checkpoint(folder), open_safetensors(folder)
        place, rank = place_of(checkpoint, task), int(number_of(checkpoint, "lora_rank"))
        scaling = number_of(checkpoint, "lora_alpha") / rank
        found: dict[str, LowRank] = {}
        for module in sorted(name.partition(BESIDE)[0] for name in source.names() if name.endswith(f"{BESIDE}A")):
            if own := own_modules(module):
                a, b = (_of_task(source, f"{module}{BESIDE}{matrix}", place) for matrix in "AB")
                found |= among_owners(own, _upright(module, a, b, rank), shapes)
    except CheckpointError as error:
        raise AdapterError(str(error)) from None
    return Adapter({module: LowRank(one.a, one.b * scaling) for module, one in found.items()})


def _of_task(source: SafetensorsSource, name: str, place: int) -> torch.Tensor:
    if name not in source.names():
        raise AdapterError(f"{name} is missing: A and B belong together")
    [(_, tensors)] = source.read([name])
    if tensors.ndim != 3 or place >= len(tensors):
        raise AdapterError(f"{name} has the shape {list(tensors.shape)}: it must hold a matrix for each task")
    return tensors[place].float()


def _upright(module: str, a: torch.Tensor, b: torch.Tensor, rank: int) -> LowRank:
    """The matrices as linears have them; those of tables of rows lie on their side."""
    if len(a) == rank == b.shape[1]:
        return LowRank(a, b)
    if a.shape[1] == rank == len(b):
        return LowRank(a.t(), b.t())
    raise AdapterError(f"{module} has matrices of {list(a.shape)} and {list(b.shape)}, which are not of rank {rank}")
