"""Ranks that share a context: which they are, and what each of them holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from atom_kernels.protocols import CacheFormat
from atom_models import open_checkpoint
from atom_models.groups import Groups
from atom_models.requirements import model_requirements
from atom_models.requirements.sharing import OneOf


@pytest.mark.parametrize(("context", "says"), [(OneOf(0, 3), "rank 0 of 3"), (OneOf(0, 2), "rank 0 of 2")])
def test_ranks_that_share_a_context_are_neighbors_among_those_that_share_a_layer(context: OneOf, says: str):
    with pytest.raises(ValueError, match=f"rank 3 of 4 that share a layer cannot be {says} that share a context"):
        Groups(OneOf(3, 4), context=context)
    assert Groups(OneOf(3, 4), context=OneOf(1, 2)).context.size == 2


def test_a_rank_takes_a_part_of_the_memory_of_a_request(tiny_family: Callable[[str], Path]):
    checkpoint, cache = open_checkpoint(tiny_family("deepseek_v3")), CacheFormat("float32")
    whole, shared = (model_requirements(checkpoint, num_context_ranks=size).on_rank(4) for size in (1, 4))
    assert whole
    assert shared
    assert whole.kv_bytes(64, cache) == 4 * shared.kv_bytes(64, cache)
    assert whole.weight_bytes == shared.weight_bytes
    assert model_requirements(checkpoint, num_context_ranks=4).on_rank(2) is None
