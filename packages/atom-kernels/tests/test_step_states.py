"""Which states the sequences of a step go on from, and which are kept: by numbers of tokens, draft by draft."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.delta.step_states import states_of_step
from atom_kernels.mixers import select_mixer
from atom_kernels.protocols import BatchGeometry, Slots, slot_of_state

EACH = 3
SIZES: dict[str, Any] = {"num_key_heads": 1, "num_value_heads": 2, "key_dim": 8, "value_dim": 8, "conv_width": 3}
PROBLEM = DeltaNetProblem(**SIZES, dtype="float32", num_drafts=EACH - 1)


def geometry_of(*sequences: tuple[int, int], first_slots: list[int], num_repeated: int = 0) -> BatchGeometry:
    """Sequences of so many tokens before the step, and in it; the first begins with `num_repeated` that came before."""
    lengths = [length for _, length in sequences]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    slot_mapping = torch.arange(int(starts[-1]))
    slot_mapping[:num_repeated] = -1
    return BatchGeometry(
        query_start_loc=starts,
        seq_lens=torch.tensor([before + length for before, length in sequences]).int(),
        block_table=torch.tensor(first_slots).int()[:, None],
        slot_mapping=slot_mapping,
        num_reqs=len(lengths),
        num_tokens=int(starts[-1]),
        num_decodes=len(lengths),
        max_query_len=max(lengths),
        max_seq_len=64,
        max_decode_len=EACH,
    )


def test_the_state_behind_each_token_has_a_slot_of_its_own_until_as_many_tokens_later():
    slots = [slot_of_state(7, num_tokens, EACH) for num_tokens in range(7)]
    assert slots == [7, 8, 9, 7, 8, 9, 7]
    assert torch.equal(slot_of_state(torch.tensor([1, 4]), torch.tensor([5, 6]), EACH), torch.tensor([3, 4]))


def test_a_step_goes_on_from_the_state_behind_the_tokens_before_it_and_keeps_one_behind_each_row():
    states = states_of_step(Slots(EACH), geometry_of((4, 3), (5, 1), (0, 20), first_slots=[1, 4, 7]))
    own = states.slots_S >= 0
    assert states.slots_S[own].tolist() == [0 + 4 % 3, 3 + 5 % 3, 6]
    # Behind 5, 6 and 7 tokens; behind 6; and of the prompt behind 20, beside columns that nobody reads.
    kept = states.kept_slots_SJ[own].tolist()
    assert (kept[0], kept[1][-1], kept[2][-1]) == ([2, 0, 1], 3, 6 + 20 % 3)


def test_a_request_without_tokens_has_no_states():
    states = states_of_step(Slots(EACH), geometry_of((4, 3), (0, 0), first_slots=[1, 4]))
    assert (states.slots_S >= 0).sum() == 1
    assert (states.kept_slots_SJ >= 0).sum() == EACH


def run(caches: list[torch.Tensor], inputs: tuple[torch.Tensor, ...], geometry: BatchGeometry) -> torch.Tensor:
    plan = select_mixer(PROBLEM)
    generator = torch.Generator().manual_seed(2)
    weights = {name: torch.rand(spec.shape, generator=generator) for name, spec in PROBLEM.weights.items()}
    return plan.forward(inputs, tuple(caches), plan.build_metadata(geometry), weights=plan.prepare(weights))


def test_whatever_was_rejected_the_next_step_goes_on_from_what_was_accepted():
    """Steps of three rows of which one, two or three are accepted give the rows of steps of one row, in every bit."""
    generator = torch.Generator().manual_seed(1)
    heads = SIZES["num_value_heads"]
    inputs = [torch.randn(24, size, generator=generator) for size in (PROBLEM.channels, heads, heads)]
    others = [torch.randn(each.shape, generator=generator) for each in inputs]
    layout = select_mixer(PROBLEM).layout
    alone = list(layout.allocate(EACH, "cpu"))
    expected = [
        run(alone, tuple(each[[row]] for each in inputs), geometry_of((row, 1), first_slots=[1])) for row in range(20)
    ]
    caches, row = [torch.full_like(cache, 9.0) for cache in layout.allocate(3 * EACH, "cpu")], 0
    for accepted in (1, 3, 2, 1, 1, 3, 2, 2, 3, 1):
        # Other inputs stand behind the accepted rows, and must not matter.
        pairs = zip(inputs, others, strict=True)
        rows = [torch.cat([each[row : row + accepted], other[: EACH - accepted]]) for each, other in pairs]
        out = run(caches, tuple(rows), geometry_of((row, EACH), first_slots=[1 + EACH]))
        assert torch.equal(out[:accepted], torch.cat(expected[row : row + accepted]))
        row += accepted
    for cache in caches:
        # Nobody touched the slots of others.
        assert torch.equal(torch.cat([cache[:EACH], cache[2 * EACH :]]), torch.full_like(cache[EACH:], 9.0))


def test_rows_that_a_captured_batch_repeats_leave_states_alone():
    """The first of three rows repeats a token whose state is gone: the others are as in a step of two."""
    generator = torch.Generator().manual_seed(1)
    heads = SIZES["num_value_heads"]
    inputs = [torch.randn(3, size, generator=generator) for size in (PROBLEM.channels, heads, heads)]
    found = []
    for first, num_repeated in ((1, 0), (0, 1)):
        caches = [cache.fill_(0.25) for cache in select_mixer(PROBLEM).layout.allocate(EACH, "cpu")]
        geometry = geometry_of((4 + first, 3 - first), first_slots=[1], num_repeated=num_repeated)
        out = run(caches, tuple(each[first:] for each in inputs), geometry)
        found.append([out[-2:], *caches])
        assert not num_repeated or not out[0].any()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
