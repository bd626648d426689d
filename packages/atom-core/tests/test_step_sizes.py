"""Steps are counted by the tokens that they compute."""

from __future__ import annotations

import pytest

from atom_core.messages import STEP_SIZES
from atom_core.scheduler.step_sizes import StepSizes
from scheduled_requests import make_engine, make_request


@pytest.mark.parametrize(("tokens", "place"), [(1, 0), (2, 1), (8, 1), (9, 2), (16_384, 12), (16_385, 13)])
def test_a_step_counts_where_the_next_bound_is(tokens, place):
    sizes = StepSizes()
    sizes.take(tokens)
    assert [index for index, count in enumerate(sizes.counts) if count] == [place]
    assert sizes.num_tokens == tokens


def test_what_moves_blocks_alone_is_no_step():
    sizes = StepSizes()
    sizes.take(0)
    assert not any(sizes.counts)


def test_prompts_chunks_and_decodes_count_with_their_tokens():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("a", 20, max_tokens=3))
    engine.run()
    assert [sum(entry.num_new_tokens for entry in step.scheduled) for step in engine.steps] == [8, 8, 4, 1, 1]
    stats = engine.scheduler.stats()
    assert (stats.num_step_tokens, stats.num_steps_by_size[:3]) == (22, (2, 3, 0))
    assert len(stats.num_steps_by_size) == len(STEP_SIZES) + 1
