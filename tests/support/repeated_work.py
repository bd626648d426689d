"""`Repeated`: stands for a captured graph on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Repeated:
    """The work is done again from and to the same memory; attention of work in pieces finds the context of the replay.

    Attributes:
        captured, replayed: how often, since `reset`.
    """

    captured = 0
    replayed = 0

    def __init__(self, work: Callable[[], torch.Tensor], *, in_pieces: bool = False) -> None:
        type(self).captured += 1
        self._work = work
        self.output = work()

    @classmethod
    def reset(cls) -> None:
        """Count anew."""
        cls.captured = cls.replayed = 0

    def replay(self) -> None:
        """Do the work again."""
        type(self).replayed += 1
        self.output.copy_(self._work())

    def share(self) -> None:
        """Its memory is its own."""
