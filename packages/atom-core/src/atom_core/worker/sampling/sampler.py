"""The sampler: logits become token ids, each row by its own request's parameters and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

from atom_core.messages import NOT_FINITE, ModelOutput, RequestStepOutput, SchedulerOutput, TokenLogprobs
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.extras import SamplingExtras
from atom_core.worker.sampling.logprobs import Logprobs
from atom_core.worker.sampling.token_masks import words_of_masks
from atom_core.worker.steps.batch import ModelInput
from atom_kernels.sampling import (
    ACCEPT_DRAWS,
    BAN_TOKENS,
    SAMPLE_SLOTS,
    AcceptProblem,
    BanProblem,
    SlotSamplingProblem,
)
from atom_kernels.select import select
from atom_models.layers.shared_vocabulary import UNSHARED_VOCABULARY, SharedVocabulary


@dataclass(frozen=True)
class Sampled:
    """What was drawn: int64 ids ``[n]`` on the device, and the logprobs of those rows that report them.

    Ids behind the first draft that was not accepted are -1. Where logits are not finite the id is `NOT_FINITE`: there
    is nothing to draw from.
    """

    token_ids: torch.Tensor
    logprobs: Mapping[int, TokenLogprobs]


class Drawing(Enum):
    """What the rows of a step want of their logits, from the least to the most.

    A step has one of them, since what ranks exchange must not depend on the row.
    """

    BEST = "every row takes its best token, of which alone the ranks tell each other"
    ALL = "a row draws from all tokens"
    FILTERED = "a row draws from what top-k, top-p or min-p leave"


class Sampler:
    """Samples the rows of steps, and appends the tokens to the histories.

    Args:
        states: the states of the running requests.
        vocabulary: how ranks share logits.

    Attributes:
        logprobs: says what the model thought of tokens.
        drawings: the ways to draw that differ here.
        width: columns of the logits that this rank computes.
    """

    def __init__(self, states: RequestStates, vocabulary: SharedVocabulary = UNSHARED_VOCABULARY) -> None:
        self._states, self._vocabulary, vocab_size = states, vocabulary, states.vocab_size
        is_shared = vocabulary.is_shared
        self.width = vocabulary.width if is_shared else vocab_size
        self.drawings = tuple(Drawing) if is_shared else (Drawing.ALL, Drawing.FILTERED)
        self._draw = {
            drawing: select(
                SAMPLE_SLOTS,
                SlotSamplingProblem(self.width if drawing is Drawing.BEST else vocab_size, drawing is Drawing.FILTERED),
            ).prepare()
            for drawing in self.drawings
        }
        self._ban_tokens = select(BAN_TOKENS, BanProblem(vocab_size)).prepare()
        self._accept = select(ACCEPT_DRAWS, AcceptProblem(states.padding_slot, NOT_FINITE)).prepare()
        self.logprobs = Logprobs(vocab_size)

    def sample_step(
        self,
        step: SchedulerOutput,
        batch: ModelInput,
        logits_nR: torch.Tensor,
        masks: Mapping[str, np.ndarray] | None = None,
    ) -> Sampled:
        """Sample the rows of `batch` that do.

        Args:
            logits_nR: float32, this rank's columns, one row for each request that samples; changed in place.
            masks: the tokens that a grammar allows, by request id (see `atom_core.executor.protocol.Masks`).
        """
        if not len(batch.rows.sampling):
            return Sampled(torch.empty(0, dtype=torch.int64), {})
        slots_n, positions_n, drawing = batch.sample_slots, batch.sample_positions, self._drawing_of_step(batch, masks)
        if drawing is Drawing.BEST:
            return Sampled(self.draw(logits_nR, slots_n, positions_n, drawing=drawing), {})
        logits_nV = self._vocabulary.whole(logits_nR)
        raw = self._process(step, batch, logits_nV, masks)
        sampled = self._draw_from(logits_nV, slots_n, positions_n, drawing)
        logprobs = {
            row: self.logprobs.of_token(logits_V, sampled[row : row + 1].clamp_min(0), extras)
            for row, (extras, logits_V) in raw.items()
        }
        return Sampled(sampled, logprobs)

    def drawing_of(self, slots: np.ndarray) -> Drawing:
        """How a step has to draw whose samples are of these slots, if none of them wants more than a token."""
        if self._states.is_greedy[slots].all():
            return self.drawings[0]
        return Drawing.FILTERED if self._states.filters[slots].any() else Drawing.ALL

    def draw(
        self, logits_nR: torch.Tensor, slots_n: torch.Tensor, positions_n: torch.Tensor, *, drawing: Drawing
    ) -> torch.Tensor:
        """Draw a token for each row by the parameters of its slot, and append it there; can be captured on a GPU.

        Rows of one slot are a request's draws at its drafts, which stand in the history, and one behind them.

        Args:
            logits_nR: float32, this rank's columns; changed in place.
            slots_n, positions_n: int64 on the device, rows of the states, and where the tokens will stand.

        Returns:
            int64 ``[n]``, as in `Sampled`: `NOT_FINITE` where a logit is positive infinity or none is finite. NaN is
            taken for negative infinity, which is drawn only where there is nothing else.
        """
        if drawing is not Drawing.BEST:
            return self._draw_from(self._vocabulary.whole(logits_nR), slots_n, positions_n, drawing)
        self._vocabulary.hide_padding(logits_nR)
        draw = self._draw[drawing]
        ids_n = draw(logits_nR, slots_n, positions_n, *self._states.sampling)
        ids_n, best_n = self._vocabulary.best(ids_n, logits_nR)
        # A row as wide as the vocabulary: whichever token was drawn, this is its logit.
        self._keep(ids_n, best_n[:, None].expand(-1, self._states.vocab_size), slots_n, positions_n)
        return ids_n

    def _drawing_of_step(self, batch: ModelInput, masks: Mapping[str, np.ndarray] | None) -> Drawing:
        slots = batch.rows.sampled_slots
        drawing = self.drawing_of(slots)
        if drawing is not Drawing.BEST:
            return drawing
        return Drawing.ALL if masks or self._states.have_extras(slots) else drawing

    def _draw_from(
        self, logits_nV: torch.Tensor, slots_n: torch.Tensor, positions_n: torch.Tensor, drawing: Drawing
    ) -> torch.Tensor:
        draw = self._draw[drawing]
        ids_n = draw(logits_nV, slots_n, positions_n, *self._states.sampling)
        self._keep(ids_n, logits_nV, slots_n, positions_n)
        return ids_n

    def _keep(
        self, ids_n: torch.Tensor, logits_nV: torch.Tensor, slots_n: torch.Tensor, positions_n: torch.Tensor
    ) -> None:
        self._accept(ids_n, logits_nV, slots_n, positions_n, self._states.history, self._states.num_rejected)

    def _process(
        self,
        step: SchedulerOutput,
        batch: ModelInput,
        logits_nV: torch.Tensor,
        masks: Mapping[str, np.ndarray] | None,
    ) -> dict[int, tuple[SamplingExtras, torch.Tensor]]:
        """Masks, biases and penalties, in place; rows that report logprobs keep a copy of what the model said.

        Masks come first: what bans tokens after them leaves at least one of those that a grammar allows.
        """
        rows, states = batch.rows, self._states
        slots = rows.sampled_slots.tolist() if states.extras else ()
        extras = {row: states.extras[slot] for row, slot in enumerate(slots) if slot in states.extras}
        raw = {
            row: (found, logits_nV[row].clone()) for row, found in extras.items() if found.params.logprobs is not None
        }
        if masks:
            request_ids = [step.scheduled[index].request_id for index in rows.sampling.tolist()]
            words = words_of_masks([masks.get(name) for name in request_ids], logits_nV.shape[1], logits_nV.device)
            self._ban_tokens(logits_nV, words)
        for row, found in extras.items():
            history = states.history[int(rows.sampled_slots[row]), : int(rows.sampled_positions[row])]
            found.process(logits_nV[row], history)
        return raw


def report(
    step: SchedulerOutput,
    token_ids: list[int],
    *,
    logprobs: Mapping[int, TokenLogprobs],
    prompt_logprobs: Mapping[int, list[TokenLogprobs]],
    embeddings: Mapping[int, list[float]],
) -> ModelOutput:
    """The results of a step.

    Args:
        token_ids, logprobs: an entry for each sample, as in `Sampled`; behind these `token_ids` has the next drafts.
        prompt_logprobs, embeddings: what requests have asked for, by their index in the batch.
    """
    requests, first = [], 0
    first_draft = None
    for index, scheduled in enumerate(step.scheduled):
        last = first + scheduled.num_samples
        accepted = token_ids[first:last]
        if -1 in accepted:
            del accepted[accepted.index(-1) :]
        next_drafts: tuple[int, ...] = ()
        if number := scheduled.num_next_drafts:
            if first_draft is None:
                first_draft = sum(each.num_samples for each in step.scheduled)
            next_drafts = tuple(token_ids[first_draft : first_draft + number])
            first_draft += number
        judged = [logprobs[place] for place in range(first, first + len(accepted))] if first in logprobs else None
        requests.append(
            RequestStepOutput(
                scheduled.request_id,
                accepted,
                judged if accepted else None,
                prompt_logprobs.get(index),
                embeddings.get(index),
                next_drafts,
            )
        )
        first = last
    return ModelOutput(step.step_id, requests)
