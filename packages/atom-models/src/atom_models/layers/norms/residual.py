"""The residual stream of a decoder: a sum whose last addition, and a norm, are left to whoever reads it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Unnormed(NamedTuple):
    """Activations that the linear is to norm by itself, and the norm: see `atom_kernels.norm.rms_norm`."""

    x_TD: torch.Tensor
    weight_D: torch.Tensor
    eps: float
    weight_offset: float


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


# What a norm gives the layer that it feeds, and what a layer gives the residual.
Normed = torch.Tensor | Unnormed
Term = torch.Tensor | Unsummed


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
            self._total = term.plus(self._total) if isinstance(term, Unsummed) else self._total + term
            self._term = None
        return self._total

    def normed(self, norm: Callable[..., Any], add_norm: Callable[..., Any]) -> Any:
        """``norm(sum)``, in one step with the addition where it is open: ``add_norm(term, total) -> (normed, sum)``."""
        if not isinstance(self._term, torch.Tensor):
            return norm(self.tensor())
        normed, self._total = add_norm(self._term, self._total)
        self._term = None
        return normed


def summed(x: Term | Residual) -> torch.Tensor:
    """The tensor behind x: itself, or what the residual or the layer's product adds up to."""
    return x if isinstance(x, torch.Tensor) else x.tensor()
