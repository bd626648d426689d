"""The residual stream of a decoder: a sum whose last addition, and a norm, are left to whoever reads it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from atom_kernels.reduce import SentPieces


class Unnormed(NamedTuple):
    """Activations that the linear is to norm by itself, and the norm: see `atom_kernels.norm.rms_norm`."""

    x_TD: torch.Tensor
    weight_D: torch.Tensor
    eps: float
    weight_offset: float

    @property
    def shape(self) -> torch.Size:
        return self.x_TD.shape


class Rounded(NamedTuple):
    """Activations as the linear that reads them would round them: see `atom_kernels.formats.RowRounding`."""

    codes_TD: torch.Tensor
    scale_TG: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.codes_TD.shape


class Unsummed:
    """``compute(x)``, what a layer adds to the residual, before it is computed, so that its kernel may add both.

    Args:
        compute: called as ``compute(x)`` or, to add a residual at once, as ``compute(x, residual)``.
    """

    __slots__ = ("_compute", "_x")

    def __init__(self, compute: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
        self._compute, self._x = compute, x

    def tensor(self) -> torch.Tensor:
        return self._compute(self._x)

    def plus(self, residual: torch.Tensor) -> torch.Tensor:
        return self._compute(self._x, residual)


# What a norm gives the layer that it feeds.
Normed = torch.Tensor | Unnormed | Rounded


class Unreduced:
    """What a layer adds to the residual before it is summed over ranks, so that one kernel may sum, add and norm.

    Args:
        reduce: overwrites a tensor by its sum over ranks.
        part: this rank's.
    """

    __slots__ = ("_is_open", "_part", "_reduce")

    def __init__(self, reduce: Callable[[torch.Tensor], Any], part: torch.Tensor) -> None:
        self._reduce, self._part, self._is_open = reduce, part, True

    def tensor(self) -> torch.Tensor:
        if self._is_open:
            self._reduce(self._part)
            self._is_open = False
        return self._part

    def plus(self, residual: torch.Tensor) -> torch.Tensor:
        return self.tensor() + residual

    def normed(self, norms: Norms, add_norm: Callable[..., Any], residual: torch.Tensor) -> Any:
        """``(normed, sum)``: by ``reduce_norm(part, residual)``, unless ranks have summed already."""
        if self._is_open and norms.reduce_norm is not None:
            return norms.reduce_norm(self._part, residual)
        return add_norm(self.tensor(), residual)


class Sent:
    """What a layer adds to the residual, on its way from the other rank: one kernel awaits it, adds and may norm."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: SentPieces) -> None:
        self._pieces = pieces

    def tensor(self) -> torch.Tensor:
        return self._pieces.sum()

    def plus(self, residual: torch.Tensor) -> torch.Tensor:
        return self.tensor() + residual

    def normed(self, norms: Norms, add_norm: Callable[..., Any], residual: torch.Tensor) -> Any:
        """``(normed, sum)``: by ``sent_norm(pieces, residual)``, unless the ranks' parts have been added already."""
        if self._pieces.is_open and norms.sent_norm is not None:
            return norms.sent_norm(self._pieces, residual)
        return add_norm(self.tensor(), residual)


Term = torch.Tensor | Unsummed | Unreduced | Sent


class Norms(NamedTuple):
    """One norm in its ways: of a tensor, of a sum of two, and of such a sum whose first term ranks are yet to sum.

    Those of sums return ``(normed, sum)``. Where there are none, the sum is computed first.
    """

    norm: Callable[..., Any]
    add_norm: Callable[..., Any] | None = None
    reduce_norm: Callable[..., Any] | None = None
    sent_norm: Callable[..., Any] | None = None


class Residual:
    """The sum of an embedding and of what the layers so far gave.

    A sum is computed once, when it is first used: by the kernel that gives the last term (`Unsummed`), together with
    the norm that follows (`normed`), or by itself (`tensor`).
    """

    __slots__ = ("_term", "_total")

    def __init__(self, total: torch.Tensor, term: Term | None = None) -> None:
        self._total, self._term = total, term

    def plus(self, term: Term) -> Residual:
        """Adds a term. It is not ``+``: torch.compile takes every ``+`` with a tensor for an addition of tensors."""
        return Residual(self.tensor(), term)

    def tensor(self) -> torch.Tensor:
        """The sum, ``[T, D]``."""
        term = self._term
        if term is not None:
            self._total = self._total + term if isinstance(term, torch.Tensor) else term.plus(self._total)
            self._term = None
        return self._total

    def normed(self, norms: Norms) -> Any:
        """The norm of the sum, in one step with what is still open of it."""
        term = self._term
        if isinstance(term, Unreduced | Sent) and norms.add_norm is not None:
            normed, self._total = term.normed(norms, norms.add_norm, self._total)
        elif isinstance(term, torch.Tensor) and norms.add_norm is not None:
            normed, self._total = norms.add_norm(term, self._total)
        else:
            return norms.norm(self.tensor())
        self._term = None
        return normed


def summed(x: Term | Residual) -> torch.Tensor:
    """The tensor behind x: itself, or what the residual or the layer's product adds up to."""
    return x if isinstance(x, torch.Tensor) else x.tensor()
