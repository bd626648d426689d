"""The sampler: logits become token ids, each row by its own request's parameters and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Sampled:
    """What was drawn: int64 ids ``[n]`` on the device, and the logprobs of those rows that report them.

    Ids behind the first draft that was not accepted are -1. Where logits are not finite the id is `NOT_FINITE`: there
    is nothing to draw from.
    """

    token_ids: torch.Tensor
    logprobs: Mapping[int, TokenLogprobs]


class Sampler:
    """Samples the rows of steps, and appends the tokens to the histories.

    Args:
        states: the states of the running requests.

    Attributes:
        logprobs: says what the model thought of tokens.
    """

    def __init__(self, states: RequestStates) -> None:
        self._states, vocab_size = states, states.vocab_size
        self._draw = {
            filters: select(SAMPLE_SLOTS, SlotSamplingProblem(vocab_size, filters)).prepare()
            for filters in (False, True)
        }
        self._ban_tokens = select(BAN_TOKENS, BanProblem(vocab_size)).prepare()
        self._accept = select(ACCEPT_DRAWS, AcceptProblem(states.padding_slot, NOT_FINITE)).prepare()
        self.logprobs = Logprobs(vocab_size)

    def sample_step(
        self,
        step: SchedulerOutput,
        batch: ModelInput,
        logits_nV: torch.Tensor,
        masks: Mapping[str, np.ndarray] | None = None,
    ) -> Sampled:
        """Sample the rows of `batch` that do.

        Args:
            logits_nV: float32 ``[n, vocab]``, one row for each request that samples; changed in place.
            masks: the tokens that a grammar allows, by request id (see `atom_core.executor.protocol.Masks`).
        """
        if not len(batch.rows.sampling):
            return Sampled(torch.empty(0, dtype=torch.int64), {})
        raw = self._process(step, batch, logits_nV, masks)
        filters = bool(self._states.filters[batch.rows.sampled_slots].any())
        sampled = self.draw(logits_nV, batch.sample_slots, batch.sample_positions, filters=filters)
        logprobs = {
            row: self.logprobs.of_token(logits_V, sampled[row : row + 1].clamp_min(0), extras)
            for row, (extras, logits_V) in raw.items()
        }
        return Sampled(sampled, logprobs)

    def draw(
        self, logits_nV: torch.Tensor, slots_n: torch.Tensor, positions_n: torch.Tensor, *, filters: bool
    ) -> torch.Tensor:
        """Draw a token for each row by the parameters of its slot, and append it there; can be captured on a GPU.

        Rows of one slot are a request's draws at its drafts, which stand in the history, and one behind them.

        Args:
            slots_n, positions_n: int64 on the device, rows of the states, and where the tokens will stand.
            filters: a row leaves tokens out by top-k, top-p or min-p.

        Returns:
            int64 ``[n]``, as in `Sampled`: `NOT_FINITE` where a logit is positive infinity or none is finite. NaN is
            taken for negative infinity, which is drawn only where there is nothing else.
        """
        draw = self._draw[filters]
        ids_n = draw(logits_nV, slots_n, positions_n, *self._states.sampling)
        self._accept(ids_n, logits_nV, slots_n, positions_n, self._states.history, self._states.num_rejected)
        return ids_n

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
