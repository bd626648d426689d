"""`RenamedSource`: the tensors of a folder that belong to one of several models, under its names for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from atom_models.quantization import Headers
from atom_models.weights.safetensors_source import SafetensorsSource

OwnName = Callable[[str], str | None]
"""``(name in the file) -> name in the model``, or None where the tensor is another model's."""


@dataclass(frozen=True)
class RenamedSource:
    """A part of the weights of a checkpoint folder.

    Attributes:
        source: all of them.
        own_name: chooses and names the part's.
    """

    source: SafetensorsSource
    own_name: OwnName

    @property
    def num_bytes(self) -> int:
        headers = self.headers().tensors.values()
        return sum(math.prod(header.shape) * header.dtype.itemsize for header in headers)

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def headers(self) -> Headers:
        tensors = self.source.headers().tensors
        return Headers({name: tensors[stored] for name, stored in self._stored.items()})

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of `names` in that order; nothing else is read."""
        order = list(names)
        tensors = self.source.read([self._stored[name] for name in order])
        for name, (_, tensor) in zip(order, tensors, strict=True):
            yield name, tensor

    @cached_property
    def _stored(self) -> dict[str, str]:
        """Name in the model -> name in the file."""
        named = {stored: self.own_name(stored) for stored in sorted(self.source.names())}
        return {name: stored for stored, name in named.items() if name is not None}
