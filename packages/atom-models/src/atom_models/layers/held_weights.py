"""`HeldWeights`: what reports say of the matrices of a layer, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from atom_kernels.plan import Plan


@dataclass(frozen=True)
class HeldWeights:
    """Matrices of the checkpoint that one operator runs.

    Attributes:
        names: the names of their layers in the checkpoint.
        asked: the name by which the checkpoint's quantization was asked; None where it has no say.
        stored: how the checkpoint has them, as layouts call it.
        held: the number format in which this rank keeps them.
        operator: what runs them.
        implementations: what runs the operator, in the order in which they are tried: backend and name.
        num_bytes: bytes of all copies that this rank keeps, with biases.
    """

    names: tuple[str, ...]
    asked: str | None
    stored: str
    held: str
    operator: str
    implementations: tuple[str, ...]
    num_bytes: int

    @classmethod
    def run_by(cls, plan: Plan, names: tuple[str, ...], *, asked: str | None, stored: str, held: str) -> HeldWeights:
        """Those that a plan runs."""
        implementations = tuple(dict.fromkeys(f"{row.backend} ({row.implementation})" for row in plan.rows))
        return cls(names, asked, stored, held, plan.op.name, implementations, plan.weight_bytes)


@runtime_checkable
class HoldsWeights(Protocol):
    """A layer with matrices."""

    def held_weights(self) -> Sequence[HeldWeights]:
        """What this rank holds of them, a part for each operator that runs."""
        ...
