"""What a quantization scheme is: how one linear's weights are stored, prepared and used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.platform import Platform
from atom_models.quantization.layouts import StoredLayout


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


class InputFormat(Protocol):
    """The form in which a scheme wants its activations: a tensor, or values with scales."""

    @property
    def name(self) -> str: ...
    def encode(self, x_TD: torch.Tensor) -> Any:
        """Bring a plain tensor to this form; the unfused reference of norms that emit it directly."""
        ...


@dataclass(frozen=True)
class DenseInput:
    """Activations as they are."""

    name: str = "dense"

    def encode(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD


DENSE_INPUT = DenseInput()


class Unnormed(NamedTuple):
    """Activations that the linear is to norm by itself, and the norm: see `atom_kernels.norm.rms_norm`."""

    x_TD: torch.Tensor
    weight_D: torch.Tensor
    eps: float
    weight_offset: float


@dataclass(frozen=True)
class UnnormedInput:
    """Up to `max_rows` rows it pays to leave the norm to the linear, as `Unnormed`, and to let it add the residual.

    A plain tensor is taken as it is.
    """

    max_rows: int
    name: str = "unnormed"

    def encode(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD


class LinearScheme(Protocol):
    """One way to hold and run the weights of a linear. Implementations are frozen dataclasses: equal ones are alike."""

    @property
    def name(self) -> str: ...

    def weight_format(self, spec: LinearSpec) -> WeightFormat:
        """What `finish` takes; where the checkpoint has another, loading rounds its numbers to this one."""
        ...

    def input_format(self, spec: LinearSpec) -> InputFormat:
        """What the linear takes."""
        ...

    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[[Any], torch.Tensor]:
        """Pack what was loaded and return `apply`: activations in `input_format` -> output.

        With an `UnnormedInput` it is ``apply(x, residual=None)``. Called once; the caller then drops `weights`.

        Args:
            weights: the tensors of `weight_format`, and "bias" if there is one.
        """
        ...


@dataclass(frozen=True)
class LayerQuantization:
    """How the matrix of one layer is stored, and how it is held.

    Attributes:
        stored: its tensors in the checkpoint.
        scheme: what a linear makes of them. Other layers hold plain numbers.
        rule: what chose them, as reports show it.
    """

    stored: StoredLayout
    scheme: LinearScheme
    rule: str = field(default="", compare=False)


class Quantization(Protocol):
    """Chooses for each layer by its full name in the checkpoint."""

    @property
    def name(self) -> str: ...

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        """What a layer with activations in `dtype` gets."""
        ...
