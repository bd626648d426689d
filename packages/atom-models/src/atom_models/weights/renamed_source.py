"""`RenamedSource`: the tensors of a folder that belong to one of several models, under its names for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from atom_models.checkpoint import CheckpointError
from atom_models.checkpoint.weight_names import OwnNames
from atom_models.quantization import Header, Headers
from atom_models.weights.safetensors_source import SafetensorsSource

OwnName = Callable[[str], OwnNames]
"""``(name in the file) -> name in the model``"""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies: in which of the equal pieces of a stored one, cut by rows."""

    stored: str
    piece: int
    num_pieces: int

    def rows(self, count: int) -> slice:
        each, rest = divmod(count, self.num_pieces)
        if rest:
            raise CheckpointError(f"{self.stored} has {count} rows, which {self.num_pieces} matrices cannot share")
        return slice(self.piece * each, (self.piece + 1) * each)


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
        return Headers({name: _header_of(tensors[place.stored], place) for name, place in self._stored.items()})

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of `names` in that order; nothing else is read."""
        order = list(names)
        tensors = self.source.read([self._stored[name].stored for name in order])
        for name, (_, tensor) in zip(order, tensors, strict=True):
            place = self._stored[name]
            yield name, tensor if place.num_pieces == 1 else tensor[place.rows(len(tensor))]

    @cached_property
    def _stored(self) -> dict[str, _Place]:
        """Where the tensors of the model lie in the file."""
        found: dict[str, _Place] = {}
        for stored in sorted(self.source.names()):
            own = self.own_name(stored)
            names = (own,) if isinstance(own, str) else own or ()
            found |= {name: _Place(stored, piece, len(names)) for piece, name in enumerate(names)}
        return found


def _header_of(header: Header, place: _Place) -> Header:
    if place.num_pieces == 1:
        return header
    rows = place.rows(header.shape[0])
    return replace(header, shape=(rows.stop - rows.start, *header.shape[1:]))
