"""What a quantization scheme is: how one linear's weights are stored, prepared and used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from atom_kernels.platform import Platform


@dataclass(frozen=True)
class LinearSpec:
    """One linear as this rank holds it: ``[T, in_features] -> [T, out_features]`` in `dtype`.

    Attributes:
        out_dtype: float32 for a head whose sums are not to be rounded; None is `dtype`. A scheme may give `dtype` then.
        gated: silu(first half) * second half of the outputs is what `apply` gives; asked for only of schemes whose
            linears take an `UnnormedInput`.
    """

    in_features: int
    out_features: int
    dtype: torch.dtype
    bias: bool
    platform: Platform
    out_dtype: torch.dtype | None = None
    gated: bool = False


@dataclass(frozen=True)
class WeightSlot:
    """A tensor that the checkpoint fills, of this rank's size.

    `output_dim` and `input_dim` say which dimension runs along the linear's outputs and inputs: stacking and sharding
    cut there, in proportion, so that scales of blocks are cut as well.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    output_dim: int | None = 0
    input_dim: int | None = None


@dataclass(frozen=True)
class InputFormat:
    """The form in which a scheme wants its activations: as they are, or as others say, such as values with scales."""

    def encode(self, x_TD: torch.Tensor) -> Any:
        """Bring a plain tensor to this form; the unfused reference of norms that emit it directly."""
        return x_TD


DENSE_INPUT = InputFormat()


class Unnormed(NamedTuple):
    """Activations that the linear is to norm by itself, and the norm: see `atom_kernels.norm.rms_norm`."""

    x_TD: torch.Tensor
    weight_D: torch.Tensor
    eps: float
    weight_offset: float


@dataclass(frozen=True)
class UnnormedInput(InputFormat):
    """Up to `max_rows` rows it pays to leave the norm to the linear, as `Unnormed`, and to let it add the residual.

    A plain tensor is taken as it is.
    """

    max_rows: int


@dataclass(frozen=True)
class LinearScheme(ABC):
    """One way to hold the weights of a linear. Equal schemes may be stacked: implementations are frozen dataclasses.

    Attributes:
        name: what messages call it.
        ignored_weights: names that may follow the layer's in the checkpoint and are not needed.
    """

    name: ClassVar[str]
    ignored_weights: ClassVar[tuple[str, ...]] = ()

    def input_format(self, spec: LinearSpec) -> InputFormat:
        """What the linear takes: activations as they are, unless the scheme says otherwise."""
        return DENSE_INPUT

    def create_weights(self, spec: LinearSpec) -> dict[str, WeightSlot]:
        """The tensors to load, by the name that follows the layer's in the checkpoint: the dense ones by default."""
        slots = {"weight": WeightSlot((spec.out_features, spec.in_features), spec.dtype, 0, 1)}
        return slots | bias_slot(spec)

    @abstractmethod
    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[[Any], torch.Tensor]:
        """Pack or quantize what was loaded and return `apply`: activations in `input_format` -> output.

        With an `UnnormedInput` it is ``apply(x, residual=None)``.

        Called once, after the last tensor came; the caller then drops `weights`.
        """


class Quantization(Protocol):
    """Chooses a scheme for each linear by its full name in the checkpoint."""

    @property
    def name(self) -> str: ...
    def scheme_for(self, layer_name: str) -> LinearScheme: ...


def bias_slot(spec: LinearSpec) -> dict[str, WeightSlot]:
    return {"bias": WeightSlot((spec.out_features,), spec.dtype)} if spec.bias else {}
