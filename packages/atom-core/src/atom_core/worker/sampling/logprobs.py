"""Log-probabilities of chosen tokens and of the most likely ones, for outputs and for prompts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from atom_core.messages import TokenLogprobs
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.extras import SamplingExtras
from atom_core.worker.steps.batch import ModelInput
from atom_kernels.sampling import token_logprobs

# Rows of logits that exist at once: a long prompt times a large vocabulary would fill the memory.
SLICE_ROWS = 256


def rank_tokens(logits_nV: torch.Tensor, token_ids: torch.Tensor, count: int) -> list[TokenLogprobs]:
    """One entry for each row of float32 logits: of its chosen token (int ``[n]``) and of the `count` most likely."""
    found = token_logprobs(logits_nV, token_ids, count)
    return [
        TokenLogprobs(token_id, logprob, place, list(zip(ids, values, strict=True)))
        for token_id, logprob, place, ids, values in zip(
            token_ids.tolist(),
            found.chosen_B.tolist(),
            found.rank_B.tolist(),
            found.top_ids_BN.tolist(),
            found.top_logprobs_BN.tolist(),
            strict=True,
        )
    ]


def judge_token(logits_V: torch.Tensor, token_id: torch.Tensor, extras: SamplingExtras) -> TokenLogprobs:
    """The entry for one sampled token (``[1]``): beside it the most likely ones, or those that were asked for."""
    if extras.logprob_ids is None:
        return rank_tokens(logits_V[None], token_id, extras.logprobs or 0)[0]
    [entry] = rank_tokens(logits_V[None], token_id, 0)
    logprobs = torch.log_softmax(logits_V.float(), dim=-1)[extras.logprob_ids]
    return msgspec.structs.replace(entry, top=list(zip(extras.logprob_ids.tolist(), logprobs.tolist(), strict=True)))


def prompt_logprobs_of_step(
    batch: ModelInput,
    hidden_TD: torch.Tensor,
    states: RequestStates,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
) -> dict[int, list[TokenLogprobs]]:
    """For each request of the batch that asks for it, what the model thought of the prompt tokens after this step's."""
    found: dict[int, list[TokenLogprobs]] = {}
    rows = batch.rows
    for index, slot in enumerate(rows.slots.tolist()):
        extras = states.extras[slot]
        if extras is None or extras.prompt_logprobs is None:
            continue
        start, length, first = int(rows.starts[index]), int(rows.lengths[index]), int(rows.query_starts[index])
        judged = min(start + length, extras.num_prompt_tokens - 1) - start
        entries: list[TokenLogprobs] = []
        for low in range(0, judged, SLICE_ROWS):
            high = min(low + SLICE_ROWS, judged)
            logits = compute_logits(hidden_TD[first + low : first + high])
            following = states.history[slot, start + low + 1 : start + high + 1].long()
            entries += rank_tokens(logits, following, extras.prompt_logprobs)
        if judged > 0:
            found[index] = entries
    return found
