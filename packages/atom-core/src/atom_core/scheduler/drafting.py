"""`Drafting`: when the scheduler waits for drafts or for what they follow, and which drafts follow its decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from atom_core.messages import ModelOutput, RequestStepOutput
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.request_book import RequestBook
from atom_core.scheduler.step_plan import PlannedRow, StepPlan
from atom_core.speculation import Candidate, Draft, Speculation, Trail


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
        self._is_by_model, self._runs_ahead = speculation.config.is_by_model, config.async_scheduling
        self._last_report = clock()

    def may_run_ahead(self, last: StepPlan) -> bool:
        """Whether the next step may be scheduled before `last` is reported.

        A model's drafts are where the next step needs them, and the worker knows which of them were accepted. Only who
        samples by what came before has to be told first. Drafts that are made here begin behind tokens that are known.
        """
        if self._is_by_model:
            return all(row.request.is_plain for row in last.rows if row.num_drafts)
        return not (last.num_drafts or self._is_worth_waiting())

    def _is_worth_waiting(self) -> bool:
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
        if self._is_by_model:
            self._append_made(step)
            return
        found = self._candidates(row.request for row in step.rows if not row.request.num_samples_in_flight)
        drafts = self._speculation.choose(
            [candidate for _, candidate in found],
            num_rows=len(step.rows),
            room=self._room(step.budget),
        )
        row_of = {row.request.request_id: row for row in step.rows}
        for (request, _), token_ids in zip(found, drafts, strict=True):
            if token_ids and self._has_blocks(request, len(token_ids)):
                step.append_drafts(row_of[request.request_id], len(token_ids), token_ids)

    def is_to_be_followed(self, request: Request) -> bool:
        """Whether a model that drafts should have followed all tokens of a request that is about to begin."""
        following = self._speculation.following
        is_wanted = following.is_trial_due or following.is_for(request.trail)
        return self._is_by_model and is_wanted and request.samples and request.may_have_drafts

    def take_admitted(self, request: Request) -> None:
        """A request begins: if the model follows nobody, it may be tried with this one."""
        if self._speculation.following.is_trial_due and self.is_to_be_followed(request) and request.has_no_gap:
            self._speculation.following.try_with(self._trail(request))

    def ask_for_drafts(self, plan: StepPlan) -> None:
        """Say whether a model follows the step, and how many drafts it makes behind it."""
        if not self._is_by_model:
            return
        # Drafts are rejected where the model followed, so that it is known how far it did.
        plan.is_followed = plan.num_drafts > 0 or any(self._is_followed(row.request) for row in plan.rows)
        if self._speculation.config.adaptive:
            decoding = (row.request.trail for row in plan.rows if row.samples)
            self._speculation.following.take_step(decoding, is_followed=plan.is_followed)
        if plan.is_followed and self._leads_to_drafts(plan):
            self._ask_behind(plan)

    def _ask_behind(self, plan: StepPlan) -> None:
        """Have a model make drafts behind the step, as far as blocks are free for what it keeps of them."""
        rows = [row for row in plan.rows if row.samples]
        found = [
            (row, candidate)
            for row in rows
            if self._is_followed(row.request) and (candidate := self._candidate(row.request, row.end)) is not None
        ]
        room = self._room(self._max_num_tokens - len(rows))
        number, are_awaited = self._speculation.choose_next(
            [candidate for _, candidate in found], num_rows=len(rows), room=room
        )
        for row, candidate in found:
            row.num_next_drafts = self._reserve(row, min(number, candidate.room, room))
            room -= row.num_next_drafts
        plan.awaits_drafts = are_awaited and plan.num_next_drafts > 0

    def _is_followed(self, request: Request) -> bool:
        """Whether a step of `request` is to be followed for its own sake."""
        return request.has_no_gap and self._speculation.following.is_for(request.trail)

    def take_report(self, plan: StepPlan, output: ModelOutput) -> None:
        """Note what the step took, if it had decodes alone, and which drafts were made."""
        now = self._clock()
        if plan.rows and all(row.num_new_tokens == 1 for row in plan.rows):
            self._speculation.take_step(
                len(plan.rows) + plan.num_drafts,
                now - self._last_report,
                plan.num_next_drafts,
                is_usual=self._is_usual(plan),
                is_followed=plan.is_followed,
            )
        self._last_report = now
        for row, result in zip(plan.rows, output.requests, strict=True) if self._is_by_model else ():
            if row.request.trail is not None:
                row.request.trail.take(Draft(result.next_draft_token_ids), row.request.token_ids)

    def take_result(self, row: PlannedRow, result: RequestStepOutput) -> None:
        """Note how many drafts of a request that goes on were accepted."""
        if row.num_drafts and result.token_ids:
            self._speculation.statistics.take(row.num_drafts, len(result.token_ids) - 1)

    def take_end(self, request: Request) -> None:
        """A request has finished: later ones may go on as it did."""
        salt, output = request.engine_request.prefix_salt, request.token_ids[request.num_prompt_tokens :]
        self._speculation.take_output(salt, output)

    def forget(self) -> None:
        """No later request is guessed by what others had before."""
        self._speculation.forget()

    def counts(self) -> dict[str, Any]:
        """Fields of `StepStats`."""
        statistics = self._speculation.statistics
        return {
            "num_drafts": statistics.num_drafts,
            "num_draft_tokens": statistics.total_draft_tokens,
            "num_accepted_tokens": statistics.total_accepted_tokens,
            "num_accepted_tokens_per_pos": tuple(statistics.accepted_by_position),
            "num_kept_output_tokens": self._speculation.num_kept_tokens,
        }

    def _is_usual(self, plan: StepPlan) -> bool:
        """Whether steps like it come one after the other, and it came behind the one before as they do.

        The first step behind which drafts are made has none itself. The device waits for the host before steps that do
        not run ahead, which most do.
        """
        if plan.num_next_drafts and not plan.num_drafts:
            return False
        waits = plan.num_drafts > 0 and not (self._is_by_model and self.may_run_ahead(plan))
        return plan.ran_ahead or waits or not self._runs_ahead

    def _is_for_drafts(self, num_decodes: int) -> bool:
        """Whether nothing but decodes is to be computed; prompts have a use for the whole of a step."""
        if not self._speculation.config.adaptive:
            return True
        return not len(self._book.waiting) and len(self._book.running) == num_decodes

    def _append_made(self, step: StepPlan) -> None:
        """Let the drafts follow that the worker has; each request has equally many, as far as it has room."""
        rows = [row for row in step.rows if row.request.num_made_drafts]
        number = _equal_number([row.request.num_made_drafts for row in rows], self._room(step.budget))
        for row in rows:
            num_drafts = min(row.request.num_made_drafts, number)
            if num_drafts and self._has_blocks(row.request, num_drafts):
                step.append_drafts(row, num_drafts)

    def _has_blocks(self, request: Request, num_drafts: int) -> bool:
        """Get blocks for drafts behind the next token of `request`, if any are free."""
        num_tokens = request.num_computed_tokens + 1 + num_drafts
        return self._book.cache.grow(request.block_table, num_tokens, request.max_computed_tokens)

    def _leads_to_drafts(self, plan: StepPlan) -> bool:
        """Whether the next step may have drafts: if adaptive, only where all who run decode then."""
        if not self._speculation.config.adaptive:
            return True
        return self._is_for_drafts(len(plan.rows)) and all(row.samples for row in plan.rows)

    def _reserve(self, row: PlannedRow, number: int) -> int:
        """How many of `number` drafts there are blocks for: each but the last is computed from as the token there.

        A whole model computes the token before the first one as well.
        """
        num_before = int(self._speculation.config.is_by_whole_model)
        if number + num_before > 1:
            request, cache = row.request, self._book.cache
            if not cache.grow(request.block_table, row.end + number - 1 + num_before, request.max_computed_tokens):
                return min(number, request.block_table.capacity - row.end + 1 - num_before)
        return number

    def _candidates(self, requests: Iterable[Request]) -> list[tuple[Request, Candidate]]:
        """The requests among `requests` that have a use for drafts now."""
        found = []
        for request in requests:
            candidate = self._candidate(request, request.num_computed_tokens)
            if candidate is not None:
                found.append((request, candidate))
        return found

    def _candidate(self, request: Request, num_computed_tokens: int) -> Candidate | None:
        """A request that has a use for drafts when so many of its tokens are computed, and the next one is not."""
        room = request.max_computed_tokens - num_computed_tokens - 1
        if room <= 0 or request.status is not RequestStatus.RUNNING or not request.may_have_drafts:
            return None
        return Candidate(self._trail(request), request.token_ids, room)

    def _trail(self, request: Request) -> Trail:
        if request.trail is None:
            request.trail = self._speculation.start_trail(request.engine_request.prefix_salt)
        return request.trail

    def _room(self, budget: int) -> int:
        """Drafts that a step may have, where everybody who may run samples a token too."""
        num_rows = min(len(self._book.running) + len(self._book.waiting), self._max_num_seqs)
        return max(min(budget, self._max_num_samples - num_rows), 0)


def _equal_number(lengths: Sequence[int], room: int) -> int:
    """How many drafts each request may have, if each has as many as it can."""
    number = max(lengths, default=0)
    while number and sum(min(length, number) for length in lengths) > room:
        number -= 1
    return number
