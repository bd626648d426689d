"""`Groups`: the ranks that hold a model together, by what they share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom_kernels.protocols import SINGLE_RANK, Collectives, UnevenCollectives


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
        expert: the ranks over which whole experts are spread; None where each of `tensor` has a part of every expert.
            They are those of `tensor`, since one sum has what experts and what all else of a layer made; and with each
            of these the ranks of `data`.
        data: the ranks with the same part of each layer in engines that compute other requests, and exchange rows
            with the experts of all of them.
        context: the ranks, of `tensor`, over which the tokens of a request are spread in caches that all of them would
            hold whole. They are neighbors, as `context_ranks` says.

    Raises:
        ValueError: experts or tokens are spread over other ranks.
    """

    tensor: Collectives = SINGLE_RANK
    stage: Stage = WHOLE
    expert: Collectives | None = None
    context: Collectives = SINGLE_RANK
    data: UnevenCollectives = SINGLE_RANK

    def __post_init__(self) -> None:
        expert, tensor, context = self.expert, self.tensor, self.context
        sharing = self.data.rank * tensor.size + tensor.rank, self.data.size * tensor.size
        if (expert is None and self.data.size > 1) or (expert is not None and (expert.rank, expert.size) != sharing):
            raise ValueError(
                f"experts are spread over {expert.size if expert else 0} ranks, and {sharing[1]} share the layer: they "
                "must be the same"
            )
        if tensor.size % context.size or tensor.rank % context.size != context.rank:
            raise ValueError(
                f"rank {tensor.rank} of {tensor.size} that share a layer cannot be rank {context.rank} of "
                f"{context.size} that share a context: these are neighbors, and their number divides that of the others"
            )

    def spreading_experts(self) -> Groups:
        """The same ranks, each of which holds whole experts."""
        return self if self.data.size > 1 else replace(self, expert=self.tensor)

    def of_engine(self) -> Groups:
        """The same ranks without those of other engines: experts are spread over the ranks of this one."""
        return self if self.data.size == 1 else replace(self, expert=self.tensor, data=SINGLE_RANK)


UNSHARED = Groups()
"""A rank that has all of a model."""
