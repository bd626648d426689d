"""`LinearPart`: one linear of the checkpoint inside a layer that may run several as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_models.adapters.adapter import LowRank


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
    def num_inputs(self) -> int:
        """This rank's."""
        return self.columns[1] - self.columns[0]

    @property
    def num_outputs(self) -> int:
        """This rank's."""
        return sum(last - first for first, last in self.rows)

    def on_rank(self, matrices: LowRank) -> LowRank:
        """This rank's part: the columns of A, and the rows of B."""
        b = [matrices.b[first:last] for first, last in self.rows]
        return LowRank(matrices.a[:, slice(*self.columns)], torch.cat(b))
