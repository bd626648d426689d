"""`AdapterStep`: which adapter the tokens of a step are computed with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch

# Up to so many tokens the time of a product is that of reading its matrices: one product over the matrices of all
# adapters then takes less than one for each.
MOST_TOGETHER = 64
Rows = torch.Tensor | slice


@dataclass(frozen=True)
class AdapterStep:
    """T tokens, some of which have an adapter.

    Attributes:
        ids: int64 ``[T]`` on the device, the adapter of each token; 0 for none.
        groups: each adapter's id, with its tokens in the batch.
        together: products run over the matrices of all adapters, and each token keeps its own adapter's part.
        masks: what linears of the same adapters share; filled by them.
    """

    ids: torch.Tensor
    groups: tuple[tuple[int, Rows], ...]
    together: bool
    masks: dict[tuple[tuple[int, int], ...], torch.Tensor] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, ids: np.ndarray, loaded: Collection[int], device: torch.device | str) -> AdapterStep | None:
        """The step of tokens with these adapters ``[T]``; None where no token has one.

        Args:
            loaded: the ids of all adapters whose matrices the linears have.
        """
        present = [int(adapter_id) for adapter_id in np.unique(ids) if adapter_id]
        if not present:
            return None
        together = len(ids) <= MOST_TOGETHER and 2 * len(present) > max(len(loaded), 2)
        groups = () if together else tuple((one, _rows(np.flatnonzero(ids == one), device)) for one in present)
        return cls(torch.from_numpy(np.ascontiguousarray(ids)).to(device), groups, together)

    def others(self, columns: tuple[tuple[int, int], ...]) -> torch.Tensor:
        """Bool ``[T, C]``, whether a column is of another adapter than the token's.

        Args:
            columns: (adapter, number of columns), in order.
        """
        mask = self.masks.get(columns)
        if mask is None:
            owners = np.repeat(*np.array(columns, dtype=np.int64).T)
            mask = self.masks[columns] = self.ids[:, None] != torch.from_numpy(owners).to(self.ids.device)
        return mask


def _rows(rows: np.ndarray, device: torch.device | str) -> Rows:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return torch.from_numpy(rows).to(device)
