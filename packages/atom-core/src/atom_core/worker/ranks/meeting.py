"""`Meeting`: where the ranks of an engine are, and where they find each other. Torch-free, crosses processes."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where a rank runs.

    Attributes:
        host: the address of its node; empty is this one, where nobody needs an address.
        device: the number of its GPU, among those that its process may use.
    """

    host: str
    device: int


class StoreFile(msgspec.Struct, frozen=True, tag=True):
    """Ranks find each other in a file that all of them, and nobody else, can open."""

    path: str


class StoreAddress(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 keeps a store, of torch.distributed, at an address of its node.

    Attributes:
        host, port: the address.
        descriptor: the number, in rank 0's process, of the socket that listens there.
    """

    host: str
    port: int
    descriptor: int


class Engines(msgspec.Struct, frozen=True):
    """Engines with as many ranks each, whose experts are spread over the ranks of all of them.

    Attributes:
        number: this engine's, among them.
        count: how many there are.
    """

    number: int = 0
    count: int = 1


class Meeting(msgspec.Struct, frozen=True):
    """What a rank needs to join the others.

    Attributes:
        places: where each rank of its engine is, by its number.
        store: where they find each other, and those of the other engines.
        num_stages: stages of equal numbers of ranks, one after the other.
        engines: the engines whose ranks meet there; each has one stage if there are several.
    """

    places: tuple[Place, ...]
    store: StoreFile | StoreAddress
    num_stages: int = 1
    engines: Engines = Engines()

    @property
    def size(self) -> int:
        """How many ranks the engine has."""
        return len(self.places)

    @property
    def first_that_samples(self) -> int:
        """The first rank of the last stage, all of whose ranks sample."""
        return self.size - self.size // self.num_stages


def on_this_host(size: int, first_device: int = 0) -> tuple[Place, ...]:
    """The places of ranks that share this node: rank 0 has the device `first_device`, the others those after it."""
    return tuple(Place("", first_device + rank) for rank in range(size))
