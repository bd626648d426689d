"""Scores of Qwen3-Reranker: how likely "yes" is against "no" behind its template. Zhang et al. 2025, 2506.05176."""

from __future__ import annotations

import math

from starlette.requests import Request

from atom_core import SamplingParams
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import Collected, collect
from atom_server.generation.generation import Generation
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.layout import lay_out
from atom_server.state import ServerState, server_state


async def score_by_words(request: Request, body: PairsRequest) -> tuple[Generation, list[float]]:
    """The probability of the second word, of the two alone, for each pair."""
    token_ids = _word_ids(server_state(request))
    params = SamplingParams(
        temperature=0.0, max_tokens=1, ignore_eos=True, seed=0, logprobs=0, logprob_token_ids=token_ids
    )
    prompts = await lay_out(request, body)
    generation = await Generation.submit(request, body, prompts, params, kind="score")
    choices = await until_disconnect(request, collect(request, generation))
    return generation, [_share(choice, token_ids) for choice in choices]


def _word_ids(state: ServerState) -> list[int]:
    found = [state.tokenizer.token_to_id(word) for word in state.engine.judging.words]
    if None in found:
        words = " and ".join(map(repr, state.engine.judging.words))
        raise APIError(500, f"the tokenizer has no tokens {words}, by which this model answers")
    return [token_id for token_id in found if token_id is not None]


def _share(choice: Collected, token_ids: list[int]) -> float:
    logprobs = {token_id: logprob for token_id, _, logprob in choice.logprobs[0].top}
    no, yes = (logprobs[token_id] for token_id in token_ids)
    return 1 / (1 + math.exp(min(no - yes, 700.0)))
