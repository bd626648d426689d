"""States of requests in slots, for the fake worker: a slot holds the tokens that its state stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_core.messages import ScheduledRequest, StateCopy
    from fake_worker import FakeEngine, WorkerState


class FakeStates:
    """What each slot holds. A request finds the tokens before its step's in one of its slots, or begins with the step.

    Its slots take turns: the state behind n tokens is in slot ``n % slots_each`` of them.
    """

    def __init__(self, slots_each: int = 1) -> None:
        self.held: dict[int, tuple[int, ...]] = {}
        self._slots_each = slots_each

    def copy(self, copies: Sequence[StateCopy]) -> None:
        """States go to further slots."""
        found = {copy.target: self.held.get(copy.source) for copy in copies}
        assert len(found) == len(copies), "two states go to the same slot"
        self.held.update({target: tokens for target, tokens in found.items() if tokens is not None})

    def run(self, entry: ScheduledRequest, state: WorkerState) -> None:
        """The step's tokens go into the states of the request; of many tokens, the last state alone is kept."""
        slot, first, each = state.tables[-1][0], entry.num_computed_tokens, self._slots_each
        assert slot > 0, "a request runs without a slot"
        assert slot % each == 1 % each, "slots of requests overlap"
        before = tuple(state.token_ids[:first])
        assert not first or self.held[slot + first % each] == before, "a slot holds the state of other tokens"
        end = first + entry.num_new_tokens
        for place in range(first + 1 if entry.num_new_tokens <= each else end, end + 1):
            self.held[slot + place % each] = tuple(state.token_ids[:place])


def let_keep_states(engine: FakeEngine, slots_each: int = 1) -> FakeEngine:
    """The last group of the engine's cache keeps states."""
    engine.worker.states_in_slots = FakeStates(slots_each)
    return engine
