"""`check_shared`: whether ranks can share a model, before any weight is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from atom_kernels.protocols import SingleRank
from atom_models.build_context import BuildContext
from atom_models.checkpoint import Checkpoint
from atom_models.groups import UNSHARED, WHOLE, Groups, Stage
from atom_models.model import construct_model


class OneOf(SingleRank):
    """One of so many ranks, for layers that are only built: they exchange nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def spread_experts(num_engines: int) -> Groups:
    """A rank that holds whole experts, of engines that have all experts among them."""
    if num_engines == 1:
        return UNSHARED.spreading_experts()
    engines = OneOf(0, num_engines)
    return Groups(expert=engines, data=engines)


def groups_of(groups: Groups, tensor: OneOf, stage: Stage = WHOLE, num_context_ranks: int = 1) -> Groups:
    """A rank that shares a model as `groups` do, and the context with neighbors if there are several."""
    context, data = OneOf(tensor.rank % num_context_ranks, num_context_ranks), groups.data
    expert = OneOf(data.rank * tensor.size + tensor.rank, data.size * tensor.size)
    return Groups(tensor, stage, None if groups.expert is None else expert, context, data)


def check_shared(
    checkpoint: Checkpoint, context: BuildContext, num_ranks: int, num_stages: int = 1, *, num_context_ranks: int = 1
) -> None:
    """Build the parts of some ranks of every stage, without weights.

    The second one begins at the first cut, of which all other cuts are multiples; the last one has what is left over.

    Raises:
        CheckpointError: heads, sizes or groups of quantized weights do not come out even, or stages cannot begin where
            they would; the message names them.
        FallbackRefusedError: transformers' layers are not split.
    """
    ranks = {0, 1, num_ranks - 1} if num_ranks > 1 else {0}
    for stage, rank in product(range(num_stages), ranks):
        groups = groups_of(context.groups, OneOf(rank, num_ranks), Stage(stage, num_stages), num_context_ranks)
        construct_model(checkpoint, replace(context, groups=groups))
