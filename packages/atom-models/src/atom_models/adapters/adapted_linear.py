"""`AdaptedLinear`: the second term of a linear, by the adapters that are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.step import AdapterStep
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
        return slice(self.begin, self.begin + sum(last - first for first, last in self.rows))

    def on_rank(self, matrices: LowRank) -> LowRank:
        """This rank's part: the columns of A, and the rows of B."""
        b = [matrices.b[first:last] for first, last in self.rows]
        return LowRank(matrices.a[:, slice(*self.columns)], torch.cat(b))


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
        columns: (adapter, number of columns) of ``x @ a_IR``, in order.
    """

    a_IR: torch.Tensor
    terms: tuple[_Term, ...]
    columns: tuple[tuple[int, int], ...]


class AdaptedLinear:
    """``around(apply)(x) = apply(x) + (x @ A.T) @ B.T``, with A and B of each row's adapter.

    Shapes: I inputs and O outputs on this rank, R the sum of ranks.

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

    def num_elements(self, rank: int) -> int:
        """Elements that an adapter of that rank takes on the device."""
        sizes = (part.place.stop - part.begin + part.columns[1] - part.columns[0] for part in self.parts)
        return 2 * rank * sum(sizes)

    def attach(self, adapter_id: int, adapter: Adapter) -> None:
        """Takes the adapter's part of this layer, which may be none."""
        given = adapter.matrices
        own = {part.name: part.on_rank(given[part.name]) for part in self.parts if part.name in given}
        if own:
            self._each[adapter_id] = self._products({adapter_id: own})
            self._matrices[adapter_id] = own
            self._all = self._products(self._matrices)

    def detach(self, adapter_id: int) -> None:
        """Lets go of the adapter's part."""
        if self._matrices.pop(adapter_id, None) is not None:
            del self._each[adapter_id]
            self._all = self._products(self._matrices) if self._matrices else None

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
            _add_terms(inner.masked_fill_(step.others(self._all.columns), 0.0), y, self._all.terms)
            return
        for adapter_id, rows in step.groups:
            products = self._each.get(adapter_id)
            if products is None:
                continue
            inner = x[rows] @ products.a_IR
            if isinstance(rows, slice):
                _add_terms(inner, y[rows], products.terms)
                continue
            for term in products.terms:
                y[:, term.place].index_add_(0, rows, (inner[:, term.inner] @ term.b_RO).to(y.dtype))

    def _products(self, matrices: Mapping[int, Mapping[str, LowRank]]) -> _Products:
        """The products of some adapters, which share them."""
        a_RI, columns, terms, num = [], [], [], 0
        for part in self.parts:
            owners = {one: own[part.name] for one, own in matrices.items() if part.name in own}
            if not owners:
                continue
            ranks = {adapter_id: len(low_rank.a) for adapter_id, low_rank in owners.items()}
            inner = slice(num, num := num + sum(ranks.values()))
            b_OR = torch.cat([low_rank.b for low_rank in owners.values()], dim=1)
            a_RI += [low_rank.a for low_rank in owners.values()]
            columns += ranks.items()
            terms.append(_Term(part.place, inner, self._held(b_OR.t(), part.name)))
        return _Products(self._held(torch.cat(a_RI).t(), self.parts[0].name), tuple(terms), tuple(columns))

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
