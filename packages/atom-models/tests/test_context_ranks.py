"""Ranks that share a context: each keeps the latents of some positions, and all of them find what one finds."""

from __future__ import annotations

import pytest

from atom_models.groups import Groups
from atom_models.requirements.sharing import OneOf


@pytest.mark.parametrize(("context", "says"), [(OneOf(0, 3), "rank 0 of 3"), (OneOf(0, 2), "rank 0 of 2")])
def test_ranks_that_share_a_context_are_neighbors_among_those_that_share_a_layer(context: OneOf, says: str):
    with pytest.raises(ValueError, match=f"rank 3 of 4 that share a layer cannot be {says} that share a context"):
        Groups(OneOf(3, 4), context=context)
    assert Groups(OneOf(3, 4), context=OneOf(1, 2)).context.size == 2
