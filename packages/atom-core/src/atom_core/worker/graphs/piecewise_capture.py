"""`Parts`: work recorded as graphs, with attention called between them.

Attention interrupts the capture: the open graph ends, the call is noted with the addresses of its inputs and its
output, and the next graph begins. A replay does all in that order, so memory that one piece gives up another may take,
as within a graph, and attention finds the metadata of the step that is running: any number of requests, of any lengths.

It is done here, and not by inductor (`graph_partition` at the same operators, with `triton.cudagraphs`), since that
needs the model to be compiled: level 2 or 3, and their start-up. It also records a size when a step of it first comes,
after a run to warm up, copies inputs whose address it does not know, and keeps memory of its own beside other graphs'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from atom_models.forward_context import Mix, get_forward_context, set_forward_context

Output = TypeVar("Output")
Replay = Callable[[], None]
Begin = Callable[[], Callable[[], Replay]]
"""Begins a graph of what is launched. What it returns ends the graph, and returns what launches it."""


class Parts:
    """What is done to repeat a piece of work.

    Args:
        begin: makes the graphs.
        unowned: gives a tensor without a hold on its memory.

    Attributes:
        replays: graphs and calls of attention, in their order.
    """

    def __init__(self, begin: Begin, unowned: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._begin, self._unowned = begin, unowned
        self.replays: list[Replay] = []

    def record(self, work: Callable[[], Output], *, in_pieces: bool) -> Output:
        """Do the work while it is captured; gives its output, in which nothing is written yet.

        Args:
            in_pieces: leave attention out of the graphs; a forward context must be set then.
        """
        self._end = self._begin()
        try:
            if not in_pieces:
                output = work()
            else:
                with set_forward_context(replace(get_forward_context(), between_graphs=self._call_between)):
                    output = work()
        except BaseException:
            # A capture in which something failed cannot be ended without an error, which tells nothing.
            with suppress(Exception):
                self._end()
            raise
        self.replays.append(self._end())
        return output

    def _call_between(self, mix: Mix, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        self.replays.append(self._end())
        # Pieces that follow may use the memory of the inputs: by then they have been read.
        self.replays.append(partial(_fill, self._unowned(out), mix, [self._unowned(given) for given in inputs]))
        self._end = self._begin()


def _fill(out: torch.Tensor, mix: Mix, inputs: Sequence[torch.Tensor]) -> None:
    out.copy_(mix(*inputs))
