"""`StepDraft`: a step while it is being put together."""

from __future__ import annotations

from atom_core.messages import ForcedTokens, NewRequest, ScheduledRequest, SchedulerOutput
from atom_core.scheduler.request import Request


class StepDraft:
    """Which requests compute how many tokens; `budget` is what is left of the step.

    Attributes:
        requests, num_new_tokens: parallel, in batch order.
        num_missing_blocks: blocks that decodes of this step are to get as soon as others return them.
        num_ending_blocks: blocks of requests that steps in flight will end; None until they are asked for."""

    def __init__(self, step_id: int, budget: int) -> None:
        self.step_id = step_id
        self.budget = budget
        self.requests: list[Request] = []
        self.num_new_tokens: list[int] = []
        self.num_missing_blocks = 0
        self.num_ending_blocks: int | None = None

    def add(self, request: Request, num_new_tokens: int) -> None:
        """Give `request` part of the budget."""
        self.requests.append(request)
        self.num_new_tokens.append(num_new_tokens)
        self.budget -= num_new_tokens

    def discard(self, request: Request) -> None:
        """Take out a request that has lost its blocks, if it is here."""
        if request in self.requests:
            index = self.requests.index(request)
            del self.requests[index]
            self.budget += self.num_new_tokens.pop(index)

    def spread_rest(self) -> None:
        """Give what is left of the budget to prompts that were held to their share and have room, first come first."""
        for index, request in enumerate(self.requests):
            if self.budget == 0:
                return
            room = request.block_table.capacity - request.num_computed_tokens
            extra = min(min(request.num_uncomputed_tokens, room) - self.num_new_tokens[index], self.budget)
            self.num_new_tokens[index] += extra
            self.budget -= extra

    def commit(self, dropped_request_ids: list[str]) -> SchedulerOutput:
        """Count the step's tokens as computed, and describe the step to the worker."""
        scheduled: list[ScheduledRequest] = []
        new_requests: list[NewRequest] = []
        forced_tokens: list[ForcedTokens] = []
        for request, num_new_tokens in zip(self.requests, self.num_new_tokens, strict=True):
            if not request.is_at_worker:
                new_requests.append(request.for_worker())
                request.is_at_worker = True
            elif request.forced_for_worker is not None:
                forced_tokens.append(request.forced_for_worker)
                request.forced_for_worker = None
            table = request.block_table
            first = request.num_computed_tokens
            request.num_computed_tokens = first + num_new_tokens
            samples = request.samples and request.num_computed_tokens == request.num_tokens
            scheduled.append(
                ScheduledRequest(
                    request_id=request.request_id,
                    num_computed_tokens=first,
                    num_new_tokens=num_new_tokens,
                    new_block_ids=table.take_news() if table.has_news else [],
                    samples=samples,
                )
            )
            request.num_samples_in_flight += samples
            request.num_steps_in_flight += 1
            request.last_step_id = self.step_id
        return SchedulerOutput(
            step_id=self.step_id,
            scheduled=scheduled,
            new_requests=new_requests,
            dropped_request_ids=dropped_request_ids,
            forced_tokens=forced_tokens,
        )
