"""States of requests in slots, for the fake worker: a slot holds the tokens that its state stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_core.messages import ScheduledRequest, StateCopy
    from fake_worker import FakeEngine, WorkerState


class FakeStates:
    """What each slot holds. A request must find in its slot the tokens before its step's, or begin with the step."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, ...]] = {}

    def copy(self, copies: Sequence[StateCopy]) -> None:
        """States go to further slots."""
        found = {copy.target: self.held.get(copy.source) for copy in copies}
        assert len(found) == len(copies), "two states go to the same slot"
        self.held.update({target: tokens for target, tokens in found.items() if tokens is not None})

    def run(self, entry: ScheduledRequest, state: WorkerState) -> None:
        """The step's tokens go into the state of the request."""
        slot, first = state.tables[-1][0], entry.num_computed_tokens
        assert slot > 0, "a request runs without a slot"
        before = tuple(state.token_ids[:first])
        assert not first or self.held[slot] == before, "a slot holds the state of other tokens"
        self.held[slot] = tuple(state.token_ids[: first + entry.num_new_tokens])


def let_keep_states(engine: FakeEngine) -> FakeEngine:
    """The last group of the engine's cache keeps states."""
    engine.worker.states_in_slots = FakeStates()
    return engine
