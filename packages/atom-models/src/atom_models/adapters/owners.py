"""Which modules of a model get the matrices of an adapter, whose names are the checkpoint's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from atom_models.adapters.adapter import LowRank
from atom_models.adapters.errors import AdapterError

_BEFORE_DECODER = re.compile(r"^(?:model\.|language_model\.)+")
OwnModules = Callable[[str], tuple[str, ...]]
"""``(name in a file) -> names in the model``: none where it is passed over, several where it is packed there."""


def within_decoder(module: str) -> str:
    """A module's name within the decoder: transformers called what stands before it by several names in turn."""
    return _BEFORE_DECODER.sub("", module)


def of_decoder(modules: Iterable[str]) -> OwnModules:
    """The names of a model that has these `modules`, and calls all within the decoder as its checkpoints do."""
    spelled = {within_decoder(module): module for module in modules}
    return lambda module: (spelled.get(within_decoder(module), module),)


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
