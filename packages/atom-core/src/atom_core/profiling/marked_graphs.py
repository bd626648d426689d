"""Names captured graphs in traces, so that a replay is known for what was captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from atom_core.worker.graphs.cuda_capture import Captured


class MarkedGraphs:
    """Captured work whose replays lie within a mark, as its capture did.

    Args:
        captured: the graphs, and what is called between them.
        mark: what a replay lies within; asked for anew at each one.
    """

    def __init__(self, captured: Captured, mark: Callable[[], AbstractContextManager[Any]]) -> None:
        self._captured, self._mark = captured, mark

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """What the work wrote last."""
        return self._captured.outputs

    def replay(self) -> None:
        """Launch the work."""
        with self._mark():
            self._captured.replay()

    def share(self) -> None:
        """Let work that is captured from now on use the memory of the outputs."""
        self._captured.share()
