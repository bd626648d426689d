"""What a quantization says of one layer: how its matrix is stored, and in which number format linears hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from atom_kernels.formats import WeightFormat
from atom_models.quantization.layouts import StoredLayout

if TYPE_CHECKING:
    from atom_models.quantization.published.cache_scales import CacheScales


@dataclass(frozen=True)
class HeldFormat:
    """The number format in which linears hold their weights. Plain numbers are held where no kernel takes the size.

    Attributes:
        weights: the format to which plain weights are rounded; None keeps them as the checkpoint has them.
        inputs: the format to which activations may be rounded where that makes a product faster; None rounds none.
    """

    weights: WeightFormat | None = None
    inputs: WeightFormat | None = None


@dataclass(frozen=True)
class LayerQuantization:
    """How the matrix of one layer is stored, and how it is held.

    Attributes:
        stored: its tensors in the checkpoint.
        held: how a linear holds it; all other layers hold plain numbers.
        rule: what chose them, as reports show it.
    """

    stored: StoredLayout
    held: HeldFormat = HeldFormat()
    rule: str = field(default="", compare=False)


class Quantization(Protocol):
    """Chooses for each layer by its full name in the checkpoint."""

    @property
    def name(self) -> str: ...

    @property
    def cache_field(self) -> str | None:
        """The field of the checkpoint's config that declares scales of an fp8 KV cache, None if none does."""
        ...

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        """What a layer with activations in `dtype` gets."""
        ...

    def stored_table(self, name: str, dtype: torch.dtype) -> StoredLayout:
        """How the embedding's table of that name is stored."""
        ...

    def cache_scales(self, attention: str) -> CacheScales | None:
        """The scales of an fp8 KV cache that the checkpoint has for the attention block of that name."""
        ...
