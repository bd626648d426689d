"""What the headers of a checkpoint's files say of its tensors, by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

# Tensors whose names follow the layer's after "_" instead of ".": those of GPT-OSS.
_JOINED = ("blocks", "scales")


@dataclass(frozen=True)
class Header:
    """A tensor that was not read."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Headers:
    """All tensors of a checkpoint by their names."""

    tensors: Mapping[str, Header]

    @cached_property
    def _by_layer(self) -> Mapping[str, Mapping[str, Header]]:
        layers: dict[str, dict[str, Header]] = {}
        for name, header in self.tensors.items():
            layer, suffix = _split(name)
            layers.setdefault(layer, {})[suffix] = header
        return layers

    def of_layer(self, layer_name: str) -> Mapping[str, Header]:
        """The tensors whose names are the layer's and one more component, by that component; none if there are none.

        The component of bitsandbytes' tensors is such as ``weight.absmax``.
        """
        return self._by_layer.get(layer_name, {})


def _split(name: str) -> tuple[str, str]:
    layer, nested, of_weight = name.partition(".weight.")
    if nested:
        return layer, f"weight.{of_weight}"
    for suffix in _JOINED:
        if name.endswith(f"_{suffix}"):
            return name.removesuffix(f"_{suffix}"), suffix
    layer, _, suffix = name.rpartition(".")
    return layer, suffix
