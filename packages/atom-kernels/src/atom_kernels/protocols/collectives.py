"""`Collectives`: what layers ask of the ranks beside them; `SINGLE_RANK` is the identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Collectives(Protocol):
    """Collective operations of one parallel group; every rank of the group calls them in the same order.

    They may overwrite what they are given.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor: ...


class SingleRank:
    """A group of one: every collective returns its input."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x


SINGLE_RANK = SingleRank()
