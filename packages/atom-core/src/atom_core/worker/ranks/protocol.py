"""`WorkerRanks`: the ranks beside a worker, as it and its layers see them; `ALONE` is a worker by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from atom_core.worker.ranks.meeting import Place
from atom_models.groups import UNSHARED, Groups

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MeetingRanks:
    """Ranks that share layers and want to share memory, too.

    Attributes:
        rank, size: the number of this one among them, and how many there are.
        places: where each rank is.
        group: what torch.distributed calls the ranks.
        smallest: the smallest of the numbers that ranks give.
        gather: ``(tensor of the host, dim)``: the tensors of all ranks side by side along `dim`.
    """

    rank: int
    size: int
    places: tuple[Place, ...]
    group: str
    smallest: Callable[[int], int]
    gather: Callable[[torch.Tensor, int], torch.Tensor]


class WorkerRanks(Protocol):
    """Where a worker stands among the ranks of its engine, and what these exchange beside their layers.

    Every rank makes the same calls of `smallest` and `sharing_context` in the same order.
    """

    @property
    def rank(self) -> int:
        """Its number among all ranks of the engine: those of the first stage come first."""
        ...

    @property
    def size(self) -> int:
        """How many ranks the engine has."""
        ...

    @property
    def groups(self) -> Groups:
        """The ranks that share its layers, and the stage that these layers are."""
        ...

    def sharing_context(self, size: int) -> Groups:
        """`groups`, of which `size` neighbors in a stage share the context of their requests."""
        ...

    def smallest(self, number: int) -> int:
        """The smallest of the numbers that the ranks give, between -2**63 and 2**63 - 1."""
        ...

    def give(self, x: torch.Tensor) -> None:
        """Send a tensor to the next stage. It may be on its way when this returns: on a CPU x must stay as it is."""
        ...

    def take(self, into: torch.Tensor) -> None:
        """Fill a contiguous tensor with what the stage before gave; on a GPU once the device gets there."""
        ...

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error` is that of a collective, which fails where another rank is gone: that one has the cause."""
        ...


class Alone:
    """The only rank."""

    rank, size, groups = 0, 1, UNSHARED

    def sharing_context(self, size: int) -> Groups:
        return self.groups

    def smallest(self, number: int) -> int:
        return number

    def give(self, x: torch.Tensor) -> None:
        raise RuntimeError("there is no stage to give anything to")

    def take(self, into: torch.Tensor) -> None:
        raise RuntimeError("there is no stage to take anything from")

    def is_loss(self, error: BaseException) -> bool:
        return False


ALONE: WorkerRanks = Alone()
