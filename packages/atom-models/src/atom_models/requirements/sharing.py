"""`check_shared`: whether tensor-parallel ranks can share a model, before any weight is read."""

from __future__ import annotations

from dataclasses import replace

from atom_kernels.protocols import SingleRank
from atom_models.build_context import BuildContext
from atom_models.checkpoint import Checkpoint
from atom_models.model import construct_model


class OneOf(SingleRank):
    """One of so many ranks, for layers that are only built: they exchange nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def check_shared(checkpoint: Checkpoint, context: BuildContext, num_ranks: int) -> None:
    """Build the parts of some ranks, without weights.

    The second one begins at the first cut, of which all other cuts are multiples; the last one has what is left over.

    Raises:
        CheckpointError: heads, sizes or groups of quantized weights do not come out even; the message names them.
        FallbackRefusedError: transformers' layers are not split.
    """
    for rank in sorted({0, 1, num_ranks - 1}):
        construct_model(checkpoint, replace(context, collectives=OneOf(rank, num_ranks)))
