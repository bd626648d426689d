"""Cosines and sines that transformers works out at each step, as the table from which our kernels rotate."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch


class AngleLayout(Enum):
    """How a row has each of its angles twice: as two halves, or in pairs."""

    HALVES = "halves"
    PAIRS = "pairs"

    def twice(self, angles: torch.Tensor) -> torch.Tensor:
        """``[..., R / 2]`` -> ``[..., R]``."""
        return torch.cat((angles, angles), -1) if self is AngleLayout.HALVES else angles.repeat_interleave(2, -1)

    def once(self, twice: torch.Tensor) -> torch.Tensor:
        """``[..., R]`` -> ``[..., R / 2]``."""
        return twice[..., : twice.shape[-1] // 2] if self is AngleLayout.HALVES else twice[..., ::2]


class TableOfStep:
    """Keeps the table of the step that runs, which all layers ask for with the same tensors."""

    def __init__(self) -> None:
        self._cos: torch.Tensor | None = None
        self._layout = AngleLayout.HALVES
        self._made: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, position_embeddings: Any, layout: AngleLayout) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows 0, 1, 2 ... and the float32 table ``[T, R]`` where they are; None where angles lie otherwise."""
        cos, sin = position_embeddings
        if cos is not self._cos or layout is not self._layout:
            self._cos, self._layout, self._made = cos, layout, _table(cos, sin, layout)
        return self._made


def _table(cos: torch.Tensor, sin: torch.Tensor, layout: AngleLayout) -> tuple[torch.Tensor, torch.Tensor] | None:
    halves = [layout.once(one) for one in (cos, sin)]
    if cos.dim() != 3 or cos.shape[0] != 1:
        return None
    if not all(torch.equal(layout.twice(half), one) for half, one in zip(halves, (cos, sin), strict=True)):
        return None
    return torch.arange(cos.shape[1]), torch.cat(halves, -1)[0].float()
