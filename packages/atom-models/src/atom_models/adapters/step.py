"""`AdapterStep`: which adapter the tokens of a step are computed with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

# Up to so many tokens the time of a product is that of reading its matrices: one kernel then does all tokens, and
# beyond them two products for each adapter take less.
MOST_TOGETHER = 64
Rows = torch.Tensor | slice


@dataclass(frozen=True)
class AdapterStep:
    """T tokens, some of which have an adapter.

    Attributes:
        places: int64 ``[T]`` on the device, the place of each token's adapter among all that are loaded, from 1; 0 is
            none.
        together: one kernel reads the place of each token.
        groups: the places that occur, each with its tokens in the batch; empty where tokens run together.
        on_host: `places`, where they were known there.
        num_tokens: T.
    """

    places: torch.Tensor
    together: bool
    groups: tuple[tuple[int, Rows], ...] = ()
    on_host: np.ndarray | None = None
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", len(self.places))

    @classmethod
    def of(cls, places: np.ndarray, device: torch.device | str) -> AdapterStep | None:
        """The step of tokens with adapters in these places ``[T]``; None where no token has one."""
        present = [int(place) for place in np.unique(places) if place]
        if not present:
            return None
        together = len(places) <= MOST_TOGETHER
        groups = () if together else tuple((one, _rows(np.flatnonzero(places == one), device)) for one in present)
        return cls(_sent(places, device), together, groups, places)

    @classmethod
    def captured(cls, places: torch.Tensor) -> AdapterStep:
        """The step of a graph, which reads the places of its tokens at each replay: it may have no groups."""
        return cls(places, together=True)


def _rows(rows: np.ndarray, device: torch.device | str) -> Rows:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return _sent(rows, device)


def _sent(numbers: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """The numbers on the device; a GPU takes them from pinned memory, so that nobody waits for the step before."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    return (tensor.pin_memory() if torch.device(device).type == "cuda" else tensor).to(device, non_blocking=True)
