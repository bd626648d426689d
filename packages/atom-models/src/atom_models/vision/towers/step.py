"""`TowerStep`: what the layers of a tower take, of all pictures of a call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch


class TowerStep(NamedTuple):
    """T rows: the patches of all pictures, one after the other, and what else layers count as such.

    Attributes:
        rows: ``[T, hidden_size]``, embedded. Rows of no run mean nothing, nor does what layers make of them.
        starts: int32 ``[runs + 1]`` each: the first row of every run that sees itself alone, and the one behind the
            last. There is one for each kind of attention.
        angles: float32 ``[T, head_dim]``, see `atom_models.vision.batch.angles`; None where nothing is turned.
    """

    rows: torch.Tensor
    starts: tuple[torch.Tensor, ...]
    angles: torch.Tensor | None = None


def starts_of(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Int32 ``[runs + 1]`` of runs of so many rows each."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
