"""Log-probabilities of chosen tokens and of the most likely ones, for outputs and for prompts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from atom_core.messages import TokenLogprobs
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.extras import SamplingExtras
from atom_core.worker.steps.batch import ModelInput
from atom_kernels.sampling import TOKEN_LOGPROBS, LogprobsProblem
from atom_kernels.select import select

# Rows of logits that exist at once: a long prompt times a large vocabulary would fill the memory.
SLICE_ROWS = 256


class Logprobs:
    """Says what the model thought of tokens.

    Args:
        vocab_size: columns of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._token_logprobs = select(TOKEN_LOGPROBS, LogprobsProblem(vocab_size)).prepare()

    def of_token(self, logits_V: torch.Tensor, token_id: torch.Tensor, extras: SamplingExtras) -> TokenLogprobs:
        """The entry for one sampled token (``[1]``): beside it the most likely ones, or those that were asked for."""
        if extras.logprob_ids is None:
            return self._rank(logits_V[None], token_id, extras.params.logprobs or 0)[0]
        [entry] = self._rank(logits_V[None], token_id, 0)
        logprobs = torch.log_softmax(logits_V.float(), dim=-1)[extras.logprob_ids]
        top = list(zip(extras.logprob_ids.tolist(), logprobs.tolist(), strict=True))
        return msgspec.structs.replace(entry, top=top)

    def of_prompts(
        self,
        batch: ModelInput,
        hidden_TD: torch.Tensor,
        states: RequestStates,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> dict[int, list[TokenLogprobs]]:
        """For each request of the batch that asks for it, by index: of the prompt tokens after this step's."""
        found: dict[int, list[TokenLogprobs]] = {}
        rows = batch.rows
        for index, slot in enumerate(rows.slots.tolist()):
            extras = states.extras.get(slot)
            if extras is None or extras.params.prompt_logprobs is None:
                continue
            start, length, first = int(rows.starts[index]), int(rows.lengths[index]), int(rows.query_starts[index])
            judged = min(start + length, extras.num_prompt_tokens - 1) - start
            entries: list[TokenLogprobs] = []
            for low in range(0, judged, SLICE_ROWS):
                high = min(low + SLICE_ROWS, judged)
                logits = compute_logits(hidden_TD[first + low : first + high])
                following = states.history[slot, start + low + 1 : start + high + 1].long()
                entries += self._rank(logits, following, extras.params.prompt_logprobs)
            if judged > 0:
                found[index] = entries
        return found

    def _rank(self, logits_nV: torch.Tensor, token_ids: torch.Tensor, count: int) -> list[TokenLogprobs]:
        """One entry for each row of float32 logits: of its chosen token (int ``[n]``), and of the most likely ones."""
        chosen, rank, top_logprobs, top_ids = self._token_logprobs(logits_nV, token_ids, count)
        return [
            TokenLogprobs(token_id, logprob, place, list(zip(ids, values, strict=True)))
            for token_id, logprob, place, ids, values in zip(
                token_ids.tolist(), chosen.tolist(), rank.tolist(), top_ids.tolist(), top_logprobs.tolist(), strict=True
            )
        ]
