"""`StepPlan`: a step while it is being put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.messages import BlockTransfers, NewRequest, ScheduledRequest, SchedulerOutput, StateCopy
from atom_core.scheduler.images_at_worker import ImagesAtWorker
from atom_core.scheduler.request import Request
from atom_core.scheduler.step_ends import StepEnds

Copies = Sequence[tuple[int, int]]


@dataclass(slots=True, eq=False)
class PlannedRow:
    """A request's share of a step: so many tokens that exist, drafts behind them, and further drafts to be made.

    `draft_token_ids` are the drafts, where the worker does not have them. `num_image_tokens` are those of the pictures
    that are encoded for it.
    """

    request: Request
    num_new_tokens: int
    num_drafts: int = 0
    draft_token_ids: Sequence[int] = ()
    num_next_drafts: int = 0
    num_image_tokens: int = 0

    @property
    def end(self) -> int:
        """Tokens of the request that are computed after the step, if all drafts are right."""
        return self.request.num_computed_tokens + self.num_new_tokens + self.num_drafts

    @property
    def samples(self) -> bool:
        """Whether the step computes all tokens that the request has, so that it gets another."""
        request = self.request
        num_tokens = len(request.token_ids) + request.num_samples_in_flight + len(request.forced_token_ids)
        return request.samples and request.num_computed_tokens + self.num_new_tokens == num_tokens


class StepPlan:
    """Which requests compute how many tokens; `budget` is what is left of the step, and `image_budget` of pictures.

    Attributes:
        rows: in batch order.
        num_missing_blocks: blocks that decodes of this step are to get as soon as others return them.
        num_ending_blocks: blocks of requests that steps in flight will end; None until they are asked for.
        ran_ahead: it was scheduled while the step before was in flight.
        keeps_samples: who computes the next step has what this one samples, and need not be told.
        awaits_drafts: the next step is to have the drafts that are made behind this one.
        is_followed: a model that drafts, where there is one, follows the step.
    """

    def __init__(
        self, step_id: int, budget: int, ends: StepEnds, *, ran_ahead: bool, keeps_samples: bool, image_budget: int = 0
    ) -> None:
        self.step_id, self.ran_ahead, self.keeps_samples = step_id, ran_ahead, keeps_samples
        self._ends = ends
        self.budget, self.image_budget = budget, image_budget
        self.rows: list[PlannedRow] = []
        self.num_missing_blocks = 0
        self.num_ending_blocks: int | None = None
        self.awaits_drafts = False
        self.is_followed = True

    @property
    def num_drafts(self) -> int:
        """Drafts behind the rows."""
        return sum(row.num_drafts for row in self.rows)

    @property
    def num_next_drafts(self) -> int:
        """Drafts made behind the step for each request, at most."""
        return max((row.num_next_drafts for row in self.rows), default=0)

    def cut(self, request: Request, num_new_tokens: int, *, num_image_tokens: int = 0) -> int:
        """How many of the next `num_new_tokens` tokens of `request` the step may compute; 0 if it has no room for any.

        It ends before the first picture that there is no room to encode, and as `StepEnds` says. `num_image_tokens`
        have room already.
        """
        num_new_tokens = self._ends.cut(request, num_new_tokens)
        room = self.image_budget + num_image_tokens
        for placed in request.images_to_encode(num_new_tokens) if request.images else ():
            room -= placed.num_encoded
            if room < 0:
                return max(placed.first_token - request.num_computed_tokens, 0)
        return num_new_tokens

    def add(self, request: Request, num_new_tokens: int) -> None:
        """Give `request` part of the budget."""
        row = PlannedRow(request, num_new_tokens)
        self.rows.append(row)
        self.budget -= num_new_tokens
        if request.images:
            self._take_images(row)

    def append_drafts(self, row: PlannedRow, number: int, token_ids: Sequence[int] = ()) -> None:
        """Let so many drafts follow a row that samples; `token_ids` where the worker does not have them."""
        row.num_drafts, row.draft_token_ids = number, token_ids
        self.budget -= number

    def discard(self, request: Request) -> None:
        """Take out a request that has lost its blocks, if it is here."""
        for index, row in enumerate(self.rows):
            if row.request is request:
                self.budget += row.num_new_tokens + row.num_drafts
                self.image_budget += row.num_image_tokens
                del self.rows[index]
                return

    def spread_rest(self) -> None:
        """Give what is left of the budget to prompts that were held to their share and have room, first come first."""
        for row in self.rows:
            if self.budget == 0:
                return
            room = row.request.block_table.capacity - row.request.num_computed_tokens
            most = min(row.request.num_uncomputed_tokens, room, row.num_new_tokens + self.budget)
            most = self.cut(row.request, most, num_image_tokens=row.num_image_tokens)
            extra = max(most - row.num_new_tokens, 0)
            row.num_new_tokens += extra
            self.budget -= extra
            if row.request.images:
                self._take_images(row)

    def _take_images(self, row: PlannedRow) -> None:
        """Let the row have the pictures that its tokens need."""
        num_tokens = sum(placed.num_encoded for placed in row.request.images_to_encode(row.num_new_tokens))
        self.image_budget -= num_tokens - row.num_image_tokens
        row.num_image_tokens = num_tokens

    def commit(
        self,
        dropped_request_ids: list[str],
        images_at_worker: ImagesAtWorker,
        *,
        copies_before: Copies = (),
        copies_behind: Copies = (),
        transfers: BlockTransfers | None = None,
    ) -> SchedulerOutput:
        """Count the step's tokens as computed, and describe the step to the worker.

        Copies are pairs of slots: from which, and to which.
        """
        new_requests: list[NewRequest] = []
        for row in self.rows:
            request = row.request
            if not request.num_tokens_at_worker:
                new_requests.append(request.for_worker(images_at_worker.send(request.images)))
                request.num_tokens_at_worker = len(request.token_ids)
        return SchedulerOutput(
            step_id=self.step_id,
            scheduled=[self._schedule(row) for row in self.rows],
            new_requests=new_requests,
            dropped_request_ids=dropped_request_ids,
            copies_before=_as_messages(copies_before) if copies_before else (),
            copies_behind=_as_messages(copies_behind) if copies_behind else (),
            transfers=transfers,
            is_followed=self.is_followed,
        )

    def _schedule(self, row: PlannedRow) -> ScheduledRequest:
        request, table, num_drafts = row.request, row.request.block_table, row.num_drafts
        if row.num_image_tokens:
            request.num_seen_tokens = request.images_to_encode(row.num_new_tokens)[-1].end
        first, num_unsettled = request.num_computed_tokens, request.num_drafts_in_flight
        end, last = first + row.num_new_tokens, first + row.num_new_tokens + num_drafts
        num_samples = 1 + num_drafts if row.samples else 0
        # Most decodes have neither.
        is_told = row.draft_token_ids or end > request.num_tokens_at_worker
        token_ids = (*request.untold_token_ids(end), *row.draft_token_ids) if is_told else ()
        request.num_computed_tokens = last
        # A model that drafts follows a step: of no use behind a gap.
        if self.is_followed and table.num_followed_tokens == first:
            table.num_followed_tokens = last
        request.num_tokens_in_flight += last - first
        request.num_made_drafts = row.num_next_drafts if self.awaits_drafts else 0
        # Drafts are told; what follows them is sampled.
        num_at_worker = end + (num_samples if self.keeps_samples else num_drafts)
        if num_at_worker > request.num_tokens_at_worker:
            request.num_tokens_at_worker = num_at_worker
        request.num_samples_in_flight += num_samples
        request.num_drafts_in_flight += num_drafts
        request.num_steps_in_flight += 1
        request.last_step_id = self.step_id
        return ScheduledRequest(
            request_id=request.request_id,
            num_computed_tokens=first,
            num_new_tokens=row.num_new_tokens + num_drafts,
            new_block_ids=table.take_new_blocks() if table.has_new_blocks else [],
            num_samples=num_samples,
            draft_token_ids=token_ids,
            num_next_drafts=row.num_next_drafts,
            num_unsettled=num_unsettled,
        )


def _as_messages(copies: Copies) -> tuple[StateCopy, ...]:
    return tuple(StateCopy(source, target) for source, target in copies)
