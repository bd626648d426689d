"""How layers take their weights: what they expect, shard by shard, and `finish` once the last one came."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from atom_models.checkpoint import CheckpointError
from atom_models.layers.weights import Weights
from atom_models.quantization import ExpectedWeight


@runtime_checkable
class Loadable(Protocol):
    """A layer that owns weights."""

    def weights(self) -> list[Weights]:
        """All of them, those that are held together as one; known before any is loaded."""
        ...

    def ignored_weights(self) -> frozenset[str]:
        """Full names that the checkpoint may hold beside the expected ones."""
        ...

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one of them, of the full shape; this rank's part is copied."""
        ...

    def finish(self) -> None:
        """Packs everything and lets go of what was loaded. Called once, after the last shard."""
        ...


@runtime_checkable
class ChoosesNames(Protocol):
    """A layer whose weights go by different names in different checkpoints."""

    def choose_names(self, available: Collection[str]) -> None:
        """Called once before loading, with the names of all tensors; `weights` then names those to load."""
        ...


def loadable(model: nn.Module) -> list[Loadable]:
    """The layers of a model that own weights."""
    return [owner for module in model.modules() if (owner := as_loadable(module)) is not None]


def as_loadable(module: nn.Module) -> Loadable | None:
    """The layer if it owns weights."""
    return cast(Loadable, module) if _own_weights(type(module)) else None


@functools.cache
def _own_weights(kind: type) -> bool:
    # Python asks each object anew: a fifth of the time of `atom plan`.
    return issubclass(kind, Loadable)


def expected_weights(layer: Loadable) -> dict[str, ExpectedWeight]:
    """The tensors of the checkpoint that a layer takes, by their full names."""
    return {name: expected for weights in layer.weights() for name, expected in weights.expected().items()}


def check_shape(name: str, tensor: torch.Tensor, expected: ExpectedWeight) -> None:
    """Refuses a tensor of another shape, or of another kind of number, than the layer expects."""
    reason = expected.why_not(tuple(tensor.shape), tensor.dtype)
    if reason is not None:
        raise CheckpointError(f"the weight {name} {reason}")


def not_loaded(name: str) -> Callable[..., Any]:
    """What a layer runs before `finish`: an error that says so."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"{name} has no weights yet: load them with load_weights() or load_dummy()")

    return refuse
