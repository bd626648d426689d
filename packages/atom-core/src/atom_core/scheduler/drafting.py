"""`Drafting`: when the scheduler waits for tokens to draft from, and which drafts follow its decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from atom_core.messages import RequestStepOutput
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.request_book import RequestBook
from atom_core.scheduler.step_plan import StepPlan
from atom_core.speculation import Candidate, Speculation


class Drafting:
    """Asks `speculation` for the drafts of a step, and tells it what became of them.

    Args:
        book: the requests and who runs.
        config: limits of steps and requests.
        clock: seconds.
    """

    def __init__(
        self, speculation: Speculation, book: RequestBook, config: SchedulerConfig, clock: Callable[[], float]
    ) -> None:
        self._speculation, self._book, self._clock = speculation, book, clock
        self._max_num_tokens, self._max_num_seqs = config.max_num_batched_tokens, config.max_num_seqs
        self._max_num_samples = speculation.config.max_num_samples(config.max_num_seqs)
        self._last_report = clock()

    def is_worth_waiting(self) -> bool:
        """Whether the next step should have drafts after the tokens that the one in flight is sampling."""
        decodes = [request for request in self._book.running if request.num_uncomputed_tokens == 1]
        if not decodes or not self._is_for_drafts(len(decodes)):
            return False
        found = self._candidates(request for request in decodes if request.num_samples_in_flight <= 1)
        room = self._room(self._max_num_tokens - len(decodes))
        return self._speculation.is_worth_waiting(
            [candidate for _, candidate in found], num_rows=len(decodes), room=room
        )

    def append_drafts(self, step: StepPlan) -> None:
        """Let drafts follow the decodes of `step`, as far as the budget goes and blocks are free."""
        if not step.rows or not self._is_for_drafts(len(step.rows)):
            return
        found = self._candidates(row.request for row in step.rows if not row.request.num_samples_in_flight)
        drafts = self._speculation.choose(
            [candidate for _, candidate in found],
            num_rows=len(step.rows),
            room=self._room(step.budget),
        )
        row_of = {row.request.request_id: row for row in step.rows}
        for (request, _), token_ids in zip(found, drafts, strict=True):
            num_tokens = request.num_computed_tokens + 1 + len(token_ids)
            if token_ids and self._book.cache.grow(request.block_table, num_tokens, request.max_computed_tokens):
                step.append_drafts(row_of[request.request_id], token_ids)

    def take_report(self, step: StepPlan, results: Iterable[RequestStepOutput]) -> None:
        """Note what `step` took, if it had decodes alone, and how many of its drafts were accepted."""
        now = self._clock()
        if all(row.num_new_tokens == 1 for row in step.rows):
            self._speculation.costs.take(len(step.rows) + step.num_drafts, now - self._last_report)
        self._last_report = now
        if step.num_drafts:
            for row, result in zip(step.rows, results, strict=True):
                if row.drafts and result.token_ids:
                    self._speculation.statistics.take(len(row.drafts), len(result.token_ids) - 1)

    def counts(self) -> dict[str, Any]:
        """Fields of `StepStats`."""
        statistics = self._speculation.statistics
        return {
            "num_drafts": statistics.num_drafts,
            "num_draft_tokens": statistics.total_draft_tokens,
            "num_accepted_tokens": statistics.total_accepted_tokens,
            "num_accepted_tokens_per_pos": tuple(statistics.accepted_by_position),
        }

    def _is_for_drafts(self, num_decodes: int) -> bool:
        """Whether nothing but decodes is to be computed; prompts have a use for the whole of a step."""
        if not self._speculation.config.adaptive:
            return True
        return not len(self._book.waiting) and len(self._book.running) == num_decodes

    def _candidates(self, requests: Iterable[Request]) -> list[tuple[Request, Candidate]]:
        found = []
        for request in requests:
            room = request.max_computed_tokens - request.num_computed_tokens - 1
            if room > 0 and request.status is RequestStatus.RUNNING and request.may_have_drafts:
                if request.trail is None:
                    request.trail = self._speculation.start_trail()
                found.append((request, Candidate(request.trail, request.token_ids, room)))
        return found

    def _room(self, budget: int) -> int:
        """Drafts that a step may have, where everybody who may run samples a token too."""
        num_rows = min(len(self._book.running) + len(self._book.waiting), self._max_num_seqs)
        return max(min(budget, self._max_num_samples - num_rows), 0)
