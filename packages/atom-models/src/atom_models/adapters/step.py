"""`AdapterStep`: which adapter the tokens of a step are computed with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

# Up to so many tokens the time of a product is that of reading its matrices: one product over the matrices of all
# adapters then takes less than one for each.
MOST_TOGETHER = 64
Rows = torch.Tensor | slice
Columns = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AdapterStep:
    """T tokens, some of which have an adapter.

    Attributes:
        places: int64 ``[T]`` on the device, the place of each token's adapter among all that are loaded, from 1; 0 is
            none.
        together: products run over the matrices of all adapters, and each token keeps its own adapter's part.
        groups: the places that occur, each with its tokens in the batch; empty where products run together.
        on_host: `places`, where they were known there.
        masks: what linears of the same adapters share; filled by them.
    """

    places: torch.Tensor
    together: bool
    groups: tuple[tuple[int, Rows], ...] = ()
    on_host: np.ndarray | None = None
    masks: dict[Columns, torch.Tensor] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, places: np.ndarray, num_loaded: int, device: torch.device | str) -> AdapterStep | None:
        """The step of tokens with adapters in these places ``[T]``; None where no token has one.

        Args:
            num_loaded: adapters whose matrices the linears have.
        """
        present = [int(place) for place in np.unique(places) if place]
        if not present:
            return None
        together = len(places) <= MOST_TOGETHER and 1 < len(present) >= num_loaded / 2
        groups = () if together else tuple((one, _rows(np.flatnonzero(places == one), device)) for one in present)
        on_device = torch.from_numpy(np.ascontiguousarray(places)).to(device)
        return cls(on_device, together, groups, places)

    @classmethod
    def captured(cls, places: torch.Tensor) -> AdapterStep:
        """The step of a graph, which reads the places of its tokens at each replay: it may have no groups.

        Each run of captured work has one of its own, so that masks are computed in it.
        """
        return cls(places, together=True)

    def others(self, columns: Columns, owners_R: torch.Tensor) -> torch.Tensor:
        """Bool ``[T, R]``, whether a column is of another adapter than the token's.

        Args:
            columns: (place, number of columns), in order.
            owners_R: the place of each column, on the device.
        """
        mask = self.masks.get(columns)
        if mask is None:
            mask = self.masks[columns] = self.places[:, None] != owners_R
        return mask


def _rows(rows: np.ndarray, device: torch.device | str) -> Rows:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return torch.from_numpy(rows).to(device)
