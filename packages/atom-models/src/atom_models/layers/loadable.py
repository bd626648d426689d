"""How layers take their weights: what they expect, shard by shard, and `finish` once the last one came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from atom_models.checkpoint import CheckpointError
from atom_models.quantization import ExpectedWeight


class RankWeight(NamedTuple):
    """A rank's part of a weight.

    Attributes:
        shape: the shape of its numbers, whatever they are stored in.
        packed_bytes: bytes of the tensors that hold this part where its numbers stay in the format of the checkpoint;
            scales may have another dtype or smaller tiles there than in the file. Where no layer can keep the format,
            bytes of this part in the file.
    """

    shape: tuple[int, ...]
    packed_bytes: int


@runtime_checkable
class Loadable(Protocol):
    """A layer that owns weights."""

    def expected_weights(self) -> Mapping[str, ExpectedWeight]:
        """Full names in the checkpoint -> shapes."""
        ...

    def ignored_weights(self) -> frozenset[str]:
        """Full names that the checkpoint may hold beside the expected ones."""
        ...

    def weights_on_rank(self) -> Sequence[RankWeight]:
        """This rank's part of all of them, however they are stored; known before any is loaded."""
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
        """Called once before loading, with the names of all tensors; `expected_weights` then names those to load."""
        ...


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
