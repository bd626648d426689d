"""`Shard`: one linear of the checkpoint inside a (merged) layer, as ranks share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives


@dataclass(frozen=True)
class Shard:
    """One linear of the checkpoint inside a (merged) layer.

    Attributes:
        name: last component of its name in the checkpoint, such as ``"q_proj"``.
        out_features: over all ranks.
        num_pieces: equal pieces, one for each rank that does not hold all of it. The last one is padded with zeros
            where they do not divide the outputs.
        order: runs (first, last + 1) of the outputs as the checkpoint counts them: those that this rank gives, in its
            order. By default they are its piece, as the checkpoint has it.
    """

    name: str
    out_features: int
    num_pieces: int = 1
    order: tuple[tuple[int, int], ...] = ()

    @property
    def features_on_rank(self) -> int:
        if self.order:
            return sum(last - first for first, last in self.order)
        return -(-self.out_features // self.num_pieces)

    @classmethod
    def of_parts(cls, name: str, parts: Sequence[int], ranks: Collectives) -> Shard:
        """A linear whose outputs are of several kinds, so many of each on a rank: ranks share each kind evenly."""
        ends = list(accumulate(part * ranks.size for part in parts))
        begins = [end - (ranks.size - ranks.rank) * part for end, part in zip(ends, parts, strict=True)]
        runs = tuple((begin, begin + part) for begin, part in zip(begins, parts, strict=True))
        return cls(name, ends[-1], order=runs)
