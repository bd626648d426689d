"""`MovedPositions`: how far pictures moved the positions of a step, where captured graphs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from atom_core.worker.devices.upload import send
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.steps.batch import StepRows

if TYPE_CHECKING:
    from atom_core.worker.vision.sight import Sight


class MovedPositions:
    """A buffer of zeros, but for steps of requests with pictures.

    Args:
        buffer: int64 ``[most tokens]``, zeros.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer, self._is_zero = buffer, True

    def fill(self, rows: StepRows, shape: GraphShape, sight: Sight | None, num_repeated: np.ndarray) -> None:
        """Write what the next replay of this shape reads; tokens of padding, and repeated ones, stay where they are.

        Args:
            sight: what a step of text sees (see `Sight.is_of_text`).
            num_repeated: leading tokens of each request that are computed again.
        """
        if sight is None:
            if not self._is_zero:
                self.buffer.zero_()
                self._is_zero = True
            return
        offsets = sight.offsets
        if shape.is_decode:
            is_own = np.arange(shape.tokens_each) >= num_repeated[:, None]
            offsets = (offsets[rows.query_starts[:-1], None] * is_own).ravel()
        padded = np.zeros(shape.num_tokens, dtype=np.int64)
        padded[: len(offsets)] = offsets
        self.buffer[: shape.num_tokens].copy_(on_device(padded, self.buffer.device))
        self._is_zero = False


def on_device(offsets: np.ndarray, device: torch.device) -> torch.Tensor:
    """What is on the host, of the same shape and dtype."""
    return send(torch.from_numpy(np.ascontiguousarray(offsets)), device)
