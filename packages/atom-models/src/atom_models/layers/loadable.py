"""How layers take their weights: what they expect, shard by shard, and `finish` once the last one came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from atom_models.checkpoint import CheckpointError
from atom_models.quantization import DENSE_INPUT, InputFormat, LinearScheme, LinearSpec, UnnormedInput


@dataclass(frozen=True)
class ExpectedWeight:
    """A tensor as the checkpoint holds it, before any rank takes its part."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@runtime_checkable
class Loadable(Protocol):
    """A layer that owns weights.

    `ignored_weights` are full names that the checkpoint may hold beside the expected ones.
    """

    ignored_weights: frozenset[str]

    def expected_weights(self) -> Mapping[str, ExpectedWeight]:
        """Full names in the checkpoint -> shapes."""
        ...

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one of them, of the full shape; this rank's part is copied."""
        ...

    def finish(self) -> None:
        """Packs everything and lets go of what was loaded. Called once, after the last shard."""
        ...


@runtime_checkable
class SplitOverRanks(Protocol):
    """A layer of which each rank holds its own part; other layers are whole on every rank."""

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        """The weights that this rank holds, before they are packed."""
        ...


@runtime_checkable
class ChoosesNames(Protocol):
    """A layer whose weights go by different names in different checkpoints."""

    def choose_names(self, available: Collection[str]) -> None:
        """Called once before loading, with the names of all tensors; `expected_weights` then names those to load."""
        ...


class SchemeWeights:
    """The tensors that one scheme is waiting for, allocated when the first of them arrives."""

    def __init__(self, scheme: LinearScheme, spec: LinearSpec, device: torch.device | str) -> None:
        self.scheme = scheme
        self.spec = spec
        self.slots = dict(scheme.create_weights(spec))
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}

    def tensor(self, slot: str) -> torch.Tensor:
        """This rank's tensor of a slot, zeros where nothing was loaded."""
        if slot not in self._tensors:
            shape, dtype = self.slots[slot].shape, self.slots[slot].dtype
            self._tensors[slot] = torch.zeros(shape, dtype=dtype, device=self._device)
        return self._tensors[slot]

    def fill(self, slot: str, tensor: torch.Tensor) -> None:
        """Uses a tensor that is there already (a tied embedding) without copying it."""
        self._tensors[slot] = tensor

    @property
    def input_format(self) -> InputFormat:
        return self.scheme.input_format(self.spec)

    def finish(self) -> Callable[..., torch.Tensor]:
        """The scheme's `apply`, with a plain tensor encoded first where the scheme wants another form."""
        tensors, self._tensors = self._tensors, {}
        apply, input_format = self.scheme.finish(self.spec, tensors), self.input_format
        if input_format == DENSE_INPUT or isinstance(input_format, UnnormedInput):
            return apply
        return lambda x: apply(input_format.encode(x) if isinstance(x, torch.Tensor) else x)


def check_shape(name: str, tensor: torch.Tensor, expected: ExpectedWeight) -> None:
    """Refuses a tensor of another shape, or of another kind of number, than the layer expects."""
    if tuple(tensor.shape) != expected.shape:
        raise CheckpointError(
            f"the weight {name} is {list(tensor.shape)}, but the config calls for {list(expected.shape)}"
        )
    if tensor.is_floating_point() != expected.dtype.is_floating_point:
        raise CheckpointError(f"the weight {name} is {tensor.dtype}, but its layer's scheme expects {expected.dtype}")


def not_loaded(name: str) -> Callable[..., Any]:
    """What a layer runs before `finish`: an error that says so."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"{name} has no weights yet: load them with load_weights() or load_dummy()")

    return refuse
