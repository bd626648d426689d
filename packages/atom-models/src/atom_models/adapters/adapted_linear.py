"""`AdaptedLinear`: the second term of a linear, by the adapters that are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.step import AdapterStep, Columns
from atom_models.forward_context import step_of_adapters


@dataclass(frozen=True)
class LinearPart:
    """One linear of the checkpoint inside a (merged) layer.

    Attributes:
        name: in the checkpoint.
        shape: its inputs and outputs, over all ranks.
        columns: this rank's inputs, as (first, last + 1).
        rows: this rank's runs of outputs.
        begin: where these begin in a row of the layer's output.
    """

    name: str
    shape: tuple[int, int]
    columns: tuple[int, int]
    rows: tuple[tuple[int, int], ...]
    begin: int

    @property
    def place(self) -> slice:
        """Where its outputs lie in a row of the layer's."""
        return slice(self.begin, self.begin + self.num_outputs)

    @property
    def num_outputs(self) -> int:
        """This rank's."""
        return sum(last - first for first, last in self.rows)

    def on_rank(self, matrices: LowRank) -> LowRank:
        """This rank's part: the columns of A, and the rows of B."""
        b = [matrices.b[first:last] for first, last in self.rows]
        return LowRank(matrices.a[:, slice(*self.columns)], torch.cat(b))

    def no_adapter(self, rank: int) -> LowRank:
        """Matrices of that rank on this rank that add nothing."""
        return LowRank(torch.zeros(rank, self.columns[1] - self.columns[0]), torch.zeros(self.num_outputs, rank))


@dataclass(frozen=True)
class _Term:
    """What some adapters add to a part of the layer's outputs.

    Attributes:
        place: the outputs.
        inner: the columns of ``x @ a.T`` that are its own.
        b_RO: B of these adapters, one below the other, turned.
    """

    place: slice
    inner: slice
    b_RO: torch.Tensor


@dataclass(frozen=True)
class _Products:
    """Two products, the second one for each part of the layer.

    Attributes:
        a_IR: A of the parts, one beside the other, turned.
        columns: (place of the adapter, number of columns) of ``x @ a_IR``, in order.
        owners_R: the place of each column.
    """

    a_IR: torch.Tensor
    terms: tuple[_Term, ...]
    columns: Columns
    owners_R: torch.Tensor


class AdaptedLinear:
    """``around(apply)(x) = apply(x) + (x @ A.T) @ B.T``, with A and B of each row's adapter.

    Adapters have places, from 1. Shapes: I inputs and O outputs on this rank, R the sum of ranks.

    Args:
        parts: the linears of the checkpoint that the layer has.
        dtype: what is computed in.
    """

    def __init__(self, parts: Sequence[LinearPart], dtype: torch.dtype, device: torch.device | str) -> None:
        self.parts, self._dtype, self._device = tuple(parts), dtype, device
        # On the host: the device has them of each adapter, and of all adapters.
        self._matrices: dict[int, Mapping[str, LowRank]] = {}
        self._each: dict[int, _Products] = {}
        self._all: _Products | None = None
        # The rank of every place, where all places have their room at fixed addresses.
        self._fixed_rank: int | None = None

    def fix(self, num_places: int, rank: int) -> None:
        """Gives every place its room now, at addresses that stay, as graphs need it; zeros are where no adapter is."""
        nothing = {part.name: part.no_adapter(rank) for part in self.parts}
        self._fixed_rank = rank
        self._all = self._products(dict.fromkeys(range(1, num_places + 1), nothing))

    def num_elements(self, rank: int) -> int:
        """Elements that an adapter of that rank takes on the device, beside those that have their room already."""
        sizes = (part.num_outputs + part.columns[1] - part.columns[0] for part in self.parts)
        return (2 if self._fixed_rank is None else 1) * rank * sum(sizes)

    def attach(self, place: int, adapter: Adapter) -> None:
        """Takes the adapter's part of this layer, which may be none."""
        given = adapter.matrices
        own = {part.name: part.on_rank(given[part.name]) for part in self.parts if part.name in given}
        if own:
            self._each[place] = self._products({place: own})
            self._matrices[place] = own
            self._gather(place)

    def detach(self, place: int) -> None:
        """Lets go of the part of the adapter in a place, if there is one."""
        if self._matrices.pop(place, None) is not None:
            del self._each[place]
            self._gather(place)

    def around(self, apply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The linear with its second term; `apply` is the linear without."""

        def applied(x: Any) -> torch.Tensor:
            y = apply(x)
            step = step_of_adapters()
            if step is not None and self._all is not None:
                self._add(x, y, step)
            return y

        return applied

    def _add(self, x: torch.Tensor, y: torch.Tensor, step: AdapterStep) -> None:
        if step.together and self._all is not None:
            inner = x @ self._all.a_IR
            # Not a product with 0: of an adapter whose numbers overflow it would be no number.
            _add_terms(inner.masked_fill_(step.others(self._all.columns, self._all.owners_R), 0.0), y, self._all.terms)
            return
        for place, rows in step.groups:
            products = self._each.get(place)
            if products is None:
                continue
            inner = x[rows] @ products.a_IR
            if isinstance(rows, slice):
                _add_terms(inner, y[rows], products.terms)
                continue
            for term in products.terms:
                y[:, term.place].index_add_(0, rows, (inner[:, term.inner] @ term.b_RO).to(y.dtype))

    def _gather(self, changed: int) -> None:
        """Puts the matrices of all adapters together, of which those in one place are others now."""
        if self._fixed_rank is None or self._all is None:
            self._all = self._products(self._matrices) if self._matrices else None
            return
        own, columns = (
            self._matrices.get(changed, {}),
            slice((changed - 1) * self._fixed_rank, changed * self._fixed_rank),
        )
        for part, term in zip(self.parts, self._all.terms, strict=True):
            a_IR, b_RO = self._all.a_IR[:, term.inner][:, columns].zero_(), term.b_RO[columns].zero_()
            if part.name in own:
                a, b = own[part.name].a.t(), own[part.name].b.t()
                a_IR[:, : a.shape[1]].copy_(a)
                b_RO[: b.shape[0]].copy_(b)

    def _products(self, matrices: Mapping[int, Mapping[str, LowRank]]) -> _Products:
        """The products of the adapters in some places, which share them."""
        a_RI, columns, terms, num = [], [], [], 0
        for part in self.parts:
            owners = {place: own[part.name] for place, own in matrices.items() if part.name in own}
            if not owners:
                continue
            ranks = {place: len(low_rank.a) for place, low_rank in owners.items()}
            inner = slice(num, num := num + sum(ranks.values()))
            b_OR = torch.cat([low_rank.b for low_rank in owners.values()], dim=1)
            a_RI += [low_rank.a for low_rank in owners.values()]
            columns += ranks.items()
            terms.append(_Term(part.place, inner, self._held(b_OR.t(), part.name)))
        owners_R = torch.tensor([place for place, rank in columns for _ in range(rank)], device=self._device)
        a_IR = self._held(torch.cat(a_RI).t(), self.parts[0].name)
        return _Products(a_IR, tuple(terms), tuple(columns), owners_R)

    def _held(self, matrix: torch.Tensor, name: str) -> torch.Tensor:
        held = matrix.to(device=self._device, dtype=self._dtype).contiguous()
        if not held.isfinite().all():
            raise AdapterError(f"the matrices of {name} hold numbers that {self._dtype} has no room for")
        return held


def _add_terms(inner_TR: torch.Tensor, y_TO: torch.Tensor, terms: Sequence[_Term]) -> None:
    for term in terms:
        target, inner = y_TO[:, term.place], inner_TR[:, term.inner]
        if target.dtype == inner.dtype:
            target.addmm_(inner, term.b_RO)
        else:
            target.add_(inner @ term.b_RO)
