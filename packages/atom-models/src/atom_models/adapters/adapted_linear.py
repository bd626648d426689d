"""`AdaptedLinear`: the second term of a linear, by the adapters that are loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from atom_kernels.platform import Platform
from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.linear_part import LinearPart
from atom_models.adapters.stacked_matrices import StackedMatrices
from atom_models.forward_context import step_of_adapters


class AdaptedLinear:
    """``around(apply)(x) = apply(x) + (x @ A.T) @ B.T``, with A and B of each row's adapter.

    Adapters have places, from 1.

    Args:
        parts: the linears of the checkpoint that the layer has.
        dtype: what is computed in.
        platform: where; None is here.
    """

    def __init__(
        self,
        parts: Sequence[LinearPart],
        dtype: torch.dtype,
        device: torch.device | str,
        platform: Platform | None = None,
    ) -> None:
        self.parts, self._dtype, self._device, self._platform = tuple(parts), dtype, device, platform
        self._stacked: StackedMatrices | None = None

    def fix(self, num_places: int, rank: int) -> None:
        """Gives every place its room now, at addresses that stay, as graphs need it."""
        self._stacked = self._stack_of(num_places, rank)

    def num_elements(self, rank: int) -> int:
        """Elements that an adapter of that rank takes on the device, where places have no room yet."""
        if self._stacked is not None:
            return 0
        return rank * sum(part.num_inputs + part.num_outputs for part in self.parts)

    def attach(self, place: int, adapter: Adapter) -> None:
        """Takes the adapter's part of this layer, which may be none."""
        given = adapter.matrices
        own = {part.name: self._on_device(part, given[part.name]) for part in self.parts if part.name in given}
        if own:
            self._room_for(place, max(len(matrices.a) for matrices in own.values())).write(place, own)

    def detach(self, place: int) -> None:
        """Lets go of the part of the adapter in a place, if there is one."""
        if self._stacked is not None and place <= self._stacked.num_places:
            self._stacked.write(place, {})

    def add_of_rows(self, y: torch.Tensor, row_ids: torch.Tensor) -> torch.Tensor:
        """``y [T, O]``, the rows of a table, and what the adapter of each adds: a row's input is one-hot."""
        step, stacked = step_of_adapters(), self._stacked
        return y if step is None or stacked is None else y + stacked.of_rows(step, row_ids).to(y.dtype)

    def around(
        self, apply: Callable[..., torch.Tensor], *, most_rows: int, takes_residual: bool
    ) -> Callable[..., torch.Tensor]:
        """The linear with its second term.

        Args:
            apply: the linear without.
            most_rows: the most rows for which it takes the term as its last input, and adds it before what follows the
                product. For more it is ``apply(x)``, a product alone.
            takes_residual: whether a residual, or None, stands before the term.
        """
        no_residual = (None,) if takes_residual else ()

        def applied(x: Any, *residual: torch.Tensor) -> torch.Tensor:
            step, stacked = step_of_adapters(), self._stacked
            if step is None or stacked is None:
                return apply(x, *residual)
            term = stacked.term(step)
            if step.num_tokens <= most_rows:
                return apply(x, *(residual or no_residual), term)
            y = apply(x)
            term.add(y, x)
            return y

        return applied

    def _room_for(self, place: int, rank: int) -> StackedMatrices:
        """The stack, in larger memory if need be: what has its room for all stays where it is."""
        before = self._stacked
        if before is not None and place <= before.num_places and rank <= before.rank:
            return before
        if before is None:
            self._stacked = self._stack_of(place, rank)
        else:
            self._stacked = self._stack_of(max(place, before.num_places), max(rank, before.rank))
            self._stacked.copy_from(before)
        return self._stacked

    def _stack_of(self, num_places: int, rank: int) -> StackedMatrices:
        where = {"device": self._device, "platform": self._platform}
        return StackedMatrices(self.parts, num_places, rank, dtype=self._dtype, **where)

    def _on_device(self, part: LinearPart, matrices: LowRank) -> LowRank:
        own = part.on_rank(matrices)
        a, b = (matrix.to(device=self._device, dtype=self._dtype) for matrix in (own.a, own.b))
        if not (a.isfinite().all() and b.isfinite().all()):
            raise AdapterError(f"the matrices of {part.name} hold numbers that {self._dtype} has no room for")
        return LowRank(a, b)
