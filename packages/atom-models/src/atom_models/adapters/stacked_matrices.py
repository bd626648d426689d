"""`StackedMatrices`: A and B of all adapters of a layer, at addresses that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem, LowRankTerm, MatricesInC
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.adapters.adapter import LowRank
from atom_models.adapters.linear_part import LinearPart
from atom_models.adapters.step import AdapterStep, Rows


class StackedMatrices:
    """Room for adapters in places from 1, zeros where none is.

    Shapes: N places, P parts of the layer, r rank, I inputs and O outputs on this rank.

    Args:
        num_places: N.
        rank: the largest one that has room.

    Attributes:
        num_places, rank: as given.
    """

    def __init__(
        self,
        parts: Sequence[LinearPart],
        num_places: int,
        rank: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        platform: Platform | None,
    ) -> None:
        self.num_places, self.rank, self._parts = num_places, rank, tuple(parts)
        num_inputs, outputs = self._parts[0].num_inputs, tuple(part.num_outputs for part in self._parts)
        self._a_NPrI = torch.zeros(num_places, len(self._parts), rank, num_inputs, dtype=dtype, device=device)
        self._b_NrO = torch.zeros(num_places, rank, sum(outputs), dtype=dtype, device=device)
        self._outputs, self._a_NRI = outputs, self._a_NPrI.flatten(1, 2)
        plan = select(ADD_LOW_RANK, LowRankProblem(num_inputs, outputs, rank, num_places, dtype), platform)
        self._add = plan.prepare({"a": self._a_NRI, "b": self._b_NrO})
        self._in_c = MatricesInC(self._a_NRI, self._b_NrO, outputs)

    def copy_from(self, other: StackedMatrices) -> None:
        """Takes the matrices of a smaller one."""
        self._a_NPrI[: other.num_places, :, : other.rank] = other._a_NPrI
        self._b_NrO[: other.num_places, : other.rank] = other._b_NrO

    def write(self, place: int, matrices: Mapping[str, LowRank]) -> None:
        """Takes the matrices of parts, by their names, in the place of those that were there."""
        a_PrI, b_rO = self._a_NPrI[place - 1].zero_(), self._b_NrO[place - 1].zero_()
        for part, a_rI in zip(self._parts, a_PrI, strict=True):
            if part.name in matrices:
                own = matrices[part.name]
                a_rI[: len(own.a)] = own.a
                b_rO[: len(own.a), part.place] = own.b.t()

    def term(self, step: AdapterStep) -> LowRankTerm:
        """What the adapters of a step add."""
        add = partial(self._add_together if step.together else self._add_by_groups, step)
        return LowRankTerm(step.places, self._a_NRI, self._b_NrO, self._outputs, add, self._in_c)

    def of_rows(self, step: AdapterStep, row_ids: torch.Tensor) -> torch.Tensor:
        """``[T, O]``: what adapters add to rows of a table ``[T]``, by one product with the B of all places."""
        has_one = (step.places > 0) & (step.places <= self.num_places)
        places = torch.where(has_one, step.places - 1, 0)
        own_Tr = self._a_NRI[places, :, row_ids] * has_one[:, None]
        inner_TNr = own_Tr.new_zeros(len(places), self.num_places, self.rank)
        inner_TNr[torch.arange(len(places), device=places.device), places] = own_Tr
        return inner_TNr.flatten(1) @ self._b_NrO.flatten(0, 1)

    def _add_together(self, step: AdapterStep, y: torch.Tensor, x: torch.Tensor) -> None:
        self._add(y, x, step.places)

    def _add_by_groups(self, step: AdapterStep, y: torch.Tensor, x: torch.Tensor) -> None:
        for place, rows in step.groups:
            if place <= self.num_places:
                self._add_to_rows(y, x, place, rows)

    def _add_to_rows(self, y: torch.Tensor, x: torch.Tensor, place: int, rows: Rows) -> None:
        """Adds what the adapter of one place gives to its rows, by two products for each part; many rows."""
        b_rO = self._b_NrO[place - 1]
        inner = x[rows] @ self._a_NPrI[place - 1].flatten(0, 1).t()
        for part, own in zip(self._parts, inner.split(self.rank, dim=1), strict=True):
            b, target = b_rO[:, part.place], y[:, part.place]
            if not isinstance(rows, slice):
                target.index_add_(0, rows, (own @ b).to(y.dtype))
            elif y.dtype == own.dtype:
                target[rows].addmm_(own, b)
            else:
                target[rows].add_(own @ b)
