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

    def __init__(self, work: Callable[[], tuple[torch.Tensor, ...]], *, in_pieces: bool = False) -> None:
        type(self).captured += 1
        self._work = work
        self.outputs = work()

    @classmethod
    def reset(cls) -> None:
        """Count anew."""
        cls.captured = cls.replayed = 0

    def replay(self) -> None:
        """Do the work again."""
        type(self).replayed += 1
        for output, again in zip(self.outputs, self._work(), strict=True):
            output.copy_(again)

    def share(self) -> None:
        """Its memory is its own."""
