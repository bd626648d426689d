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


class Agreement:
    """Whether the angles that one layer is given lie as its layout says.

    That follows from the code of their model, so that angles which show it are looked at once; later steps bring no
    values to Python.
    """

    def __init__(self, layout: AngleLayout) -> None:
        self._layout = layout
        self._found: bool | None = None

    def of(self, position_embeddings: Any) -> bool:
        """Whether these do."""
        if self._found is not None:
            return self._found
        halves = [self._layout.once(one) for one in position_embeddings]
        agree = all(
            torch.equal(self._layout.twice(half), one) for half, one in zip(halves, position_embeddings, strict=True)
        )
        # At the first position all angles are zero, and lie in every way.
        if any(_shows(half) for half in halves):
            self._found = agree
        return agree


class TableOfStep:
    """Keeps the table of the step that runs, which all layers ask for with the same tensors."""

    def __init__(self) -> None:
        self._cos: torch.Tensor | None = None
        self._layout = AngleLayout.HALVES
        self._made: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, position_embeddings: Any, layout: AngleLayout) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows 0, 1, 2 ... and the float32 table ``[T, R]`` of its angles; None where tokens have no row each."""
        cos, sin = position_embeddings
        if cos is not self._cos or layout is not self._layout:
            self._cos, self._layout, self._made = cos, layout, _table(cos, sin, layout)
        return self._made


def _table(cos: torch.Tensor, sin: torch.Tensor, layout: AngleLayout) -> tuple[torch.Tensor, torch.Tensor] | None:
    if cos.dim() != 3 or cos.shape[0] != 1:
        return None
    halves = [layout.once(one) for one in (cos, sin)]
    return torch.arange(cos.shape[1]), torch.cat(halves, -1)[0].float()


def _shows(once: torch.Tensor) -> bool:
    """Whether rows of these angles tell one layout from the other."""
    return once.shape[-1] == 1 or not torch.equal(*(layout.twice(once) for layout in AngleLayout))
