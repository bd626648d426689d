"""`Groups`: the ranks that hold a model together, by what they share."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.protocols import SINGLE_RANK, Collectives


@dataclass(frozen=True)
class Stage:
    """A run of a model's layers. The first stage has the embedding, the last one the last norm and the head.

    Attributes:
        index: its number.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, num_layers: int) -> range:
        """The ids of its layers, of a model that has `num_layers`.

        Where these do not come out even, the first stages have one more: the last one has the head.

        Raises:
            ValueError: there are more stages than layers.
        """
        if self.count > num_layers:
            raise ValueError(f"num_hidden_layers is {num_layers}, and {self.count} pipeline stages need a layer each")
        each, left = divmod(num_layers, self.count)
        first = self.index * each + min(self.index, left)
        return range(first, first + each + (self.index < left))


WHOLE = Stage()
"""All of a model."""


@dataclass(frozen=True)
class Groups:
    """Where one rank stands.

    Attributes:
        tensor: the ranks that share each layer with it.
        stage: the layers that it has, of all those of the pipeline.
    """

    tensor: Collectives = SINGLE_RANK
    stage: Stage = WHOLE


UNSHARED = Groups()
"""A rank that has all of a model."""
