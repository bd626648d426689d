"""Which modules of a model get the matrices of an adapter, whose names are the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from atom_models.adapters.adapter import LowRank
from atom_models.adapters.errors import AdapterError

OwnModules = Callable[[str], tuple[str, ...]]
"""``(name in a file) -> names in the model``: none where it is passed over, several where it is packed there."""


def as_named(module: str) -> tuple[str, ...]:
    """The names of a model that calls everything as its checkpoints do."""
    return (module,)


def among_owners(own: Sequence[str], matrices: LowRank, shapes: Mapping[str, tuple[int, int]]) -> dict[str, LowRank]:
    """The matrices of each module: what is packed has the rows of B one behind the other, and shares A.

    Raises:
        AdapterError: a module takes none, or the shapes are not its own.
    """
    found, each = {}, len(matrices.b) // len(own)
    for place, module in enumerate(own):
        one = LowRank(matrices.a, matrices.b[place * each : (place + 1) * each])
        expected, given = shapes.get(module), (one.a.shape[1], len(one.b))
        if given != expected:
            raise AdapterError(f"matrices for {module} take {given[0]} inputs to {given[1]} outputs; it has {expected}")
        found[module] = one
    return found
