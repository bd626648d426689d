"""What a quantization scheme is: how one linear's weights are held, prepared and used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.plan import Plan
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
    """One way to hold and run the weights of a linear. Implementations are frozen dataclasses: equal ones are alike."""

    def for_weights(self, spec: LinearSpec, stored: WeightFormat) -> LinearScheme:
        """The scheme for a linear whose weights come in a format: this one, unless it depends on the format."""
        return self

    def input_format(self, spec: LinearSpec) -> InputFormat:
        """What the linear takes: activations as they are, unless the scheme says otherwise."""
        return DENSE_INPUT

    def weight_format(self, spec: LinearSpec) -> WeightFormat:
        """What `finish` takes: plain numbers by default. Loading rounds what has another format to this one."""
        return Plain(spec.dtype)

    @abstractmethod
    def plan(self, spec: LinearSpec) -> Plan:
        """The implementations that run it, which are known before any weight is there."""

    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[[Any], torch.Tensor]:
        """Pack what was loaded and return `apply`: activations in `input_format` -> output.

        With an `UnnormedInput` it is ``apply(x, residual=None)``. Called once; the caller then drops `weights`.

        Args:
            weights: the tensors of `weight_format`, and "bias" if there is one.
        """
        return self.plan(spec).prepare(weights)


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
