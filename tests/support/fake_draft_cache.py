"""A draft model without a model: it keeps a number for each token, in the blocks of the fake worker.

The number at a position depends on the token after it, on what the target keeps there, and on the numbers before that
the group's window shows. Each that drafts are made by has to be the one that the request's tokens give: a slot that was
not written again after a rejected draft, a block that another request computed before another token, or a token of a
step that was not followed, is noticed. What is written behind such a number is not true either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from atom_core.messages import EngineRequest, SamplingParams, ScheduledRequest
from fake_worker import VOCAB_SIZE, FakeWorker, WorkerState, extend_values, tokens_alone, value_of

Guess = Callable[[WorkerState, int], Sequence[int]]
"""``(state, number)``: what comes after the tokens of a request."""

GUESS = -1
"""Stands where something was computed from a draft, or from what is not true: no draft may be made by it later."""


class FakeDraftCache:
    """Runs behind the steps of a `FakeWorker`, and guesses what comes."""

    def __init__(self, worker: FakeWorker, guess: Guess) -> None:
        self._worker, self._guess = worker, guess
        self._slots: list[int | None] = [None] * len(worker.slots)
        self.num_made = 0

    def run(self, entry: ScheduledRequest, state: WorkerState, num_accepted: int) -> tuple[int, ...]:
        """Write the tokens of a step, of whose samples so many stay, and make the drafts that it asks for."""
        first, end = entry.num_computed_tokens, entry.num_computed_tokens + entry.num_new_tokens
        num_true = min(end - max(entry.num_samples - num_accepted, 0), len(state.token_ids) - 1)
        for group, window in enumerate(self._worker.windows):
            truth = self._truth(state, group, num_true)
            for position in range(first, end):
                if position >= num_true:
                    self._write(state, group, position, GUESS)
                    continue
                seen = range(self._first_seen(position, window), position)
                is_true = all(self._read(state, group, earlier) == truth[earlier] for earlier in seen)
                self._write(state, group, position, truth[position] if is_true else GUESS)
            if entry.num_next_drafts:
                for earlier in range(self._first_seen(num_true, window), num_true):
                    assert self._read(state, group, earlier) == truth[earlier], "a draft reads what is not true"
        for position in range(num_true, num_true + entry.num_next_drafts - 1):
            for group in range(len(self._worker.windows)):
                self._write(state, group, position, GUESS)
        self.num_made += entry.num_next_drafts
        return tuple(self._guess(state, entry.num_next_drafts)) if entry.num_next_drafts else ()

    def _truth(self, state: WorkerState, group: int, num_tokens: int) -> list[int]:
        """By definition: what is kept of the first tokens, each with the one after it."""
        window = self._worker.windows[group]
        targets: list[int] = []
        extend_values(targets, state.token_ids[:num_tokens], window)
        truth: list[int] = []
        for position, target in enumerate(targets):
            before = truth[self._first_seen(position, window) :]
            truth.append(value_of([*before, target], state.token_ids[position + 1]))
        return truth

    def _first_seen(self, position: int, window: int | None) -> int:
        return max(position - (2 if window is None else window) + 1, 0)

    def _slot(self, state: WorkerState, group: int, position: int) -> int:
        table, block_size = state.tables[group], self._worker.block_size
        assert position // block_size < len(table), "a draft is kept outside of the request's blocks"
        return table[position // block_size] * block_size + position % block_size

    def _read(self, state: WorkerState, group: int, position: int) -> int | None:
        return self._slots[self._slot(state, group, position)]

    def _write(self, state: WorkerState, group: int, position: int, value: int) -> None:
        self._slots[self._slot(state, group, position)] = value


def guess_at_random(chooser: random.Random, vocab_size: int) -> Guess:
    """Any ids."""
    return lambda state, number: [chooser.randrange(vocab_size) for _ in range(number)]


def guess_by_knowing(chooser: random.Random, windows: Sequence[int | None], mistakes: float) -> Guess:
    """What the fake worker is going to sample, now and then with a mistake in it."""

    def guess(state: WorkerState, number: int) -> list[int]:
        request = EngineRequest(
            "", list(state.token_ids), SamplingParams(max_tokens=number), sample_index=state.sample_index
        )
        return [(token + (chooser.random() < mistakes)) % VOCAB_SIZE for token in tokens_alone(request, windows)]

    return guess
