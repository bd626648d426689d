"""`Weights`: what a layer says of its weights before any is loaded, to the loader, to plans and to reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_models.quantization import ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout


class RankWeight(NamedTuple):
    """A rank's part of a weight.

    Attributes:
        shape: the shape of its numbers, whatever they are stored in; where experts have one each, that of one of them.
        stored_bytes: bytes of the tensors that hold this part where its numbers stay in the format of the checkpoint;
            scales may have another dtype or smaller tiles there than in the file. Where no layer can keep the format,
            bytes of this part in the file.
        count: how many experts have one; 1 where there are no experts.
    """

    shape: tuple[int, ...]
    stored_bytes: int
    count: int = 1


@dataclass(frozen=True)
class HeldWeights:
    """How a rank keeps matrices.

    Attributes:
        held: the number format in which they are kept.
        operator, implementations: what runs them; by backend and name, in the order in which they are tried.
        layouts: the names of their copies, which differ in the order of the numbers.
        num_bytes: bytes of all copies that this rank keeps, with biases.
    """

    held: str
    operator: str
    implementations: tuple[str, ...]
    layouts: tuple[str, ...]
    num_bytes: int

    @classmethod
    def run_by(cls, plan: Plan, held: str) -> HeldWeights:
        implementations = tuple(dict.fromkeys(f"{row.backend} ({row.implementation})" for row in plan.rows))
        layouts = tuple(name for name, _ in plan.layouts)
        return cls(held, plan.op.name, implementations, layouts, plan.weight_bytes)


@dataclass(frozen=True)
class Weights:
    """Weights that a layer holds together: the matrices that one operator runs, or tensors that are no matrices.

    What takes long to list is a function.

    Attributes:
        expected: gives the tensors of the checkpoint by their full names, whole, whichever part this rank keeps.
        on_rank: this rank's part of each.
        held: gives how this rank keeps the matrices; None where there are none.
        names: the names of the matrices' layers in the checkpoint.
        layouts: how the checkpoint has the matrices; none where the matrix is another layer's.
        asked: the name by which the checkpoint's quantization was asked; None where it has no say.
        packed_on: says whether a platform would hold them packed; None where they are plain numbers everywhere.
        chosen: how many experts a token chooses, and of how many; None where there are no experts.
    """

    expected: Callable[[], Mapping[str, ExpectedWeight]]
    on_rank: Sequence[RankWeight]
    held: Callable[[], HeldWeights] | None = None
    names: tuple[str, ...] = ()
    layouts: tuple[StoredLayout, ...] = ()
    asked: str | None = None
    packed_on: Callable[[Platform], bool] | None = None
    chosen: tuple[int, int] | None = None

    @property
    def stored(self) -> str:
        """How the checkpoint has the matrices, as reports show it."""
        return " and ".join(dict.fromkeys(layout.name for layout in self.layouts))

    @property
    def is_stored_plain(self) -> bool:
        return all(isinstance(layout, PlainLayout) for layout in self.layouts)

    @property
    def num_numbers(self) -> int:
        return sum(one.count * math.prod(one.shape) for one in self.on_rank)

    @property
    def num_idle(self) -> int:
        """Numbers of the experts that a token does not choose."""
        used, count = self.chosen or (1, 1)
        return self.num_numbers * (count - used) // count
