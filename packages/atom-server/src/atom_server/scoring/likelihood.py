"""How likely one text is after another, by a model that writes text: its score where it is no reranker.

It is the geometric mean of the probabilities of the second text's tokens, given the first: from 0 to 1.
"""

from __future__ import annotations

import math

from starlette.requests import Request

from atom_core import SamplingParams
from atom_core.engine.inputs.checked_prompts import beside_the_loop
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import Collected, collect
from atom_server.generation.generation import Generation
from atom_server.prompts.texts import PromptTokens, encode_texts
from atom_server.schemas.scores import PairsRequest
from atom_server.scoring.lengths import check_lengths
from atom_server.state import server_state

_PARAMS = SamplingParams(max_tokens=0, prompt_logprobs=0)


async def score_by_likelihood(request: Request, body: PairsRequest) -> tuple[Generation, list[float]]:
    """See the module's docstring; of documents and a query, that of the query after each document."""
    pairs, judged = body.texts_in_order(), body.judged
    state = server_state(request)
    param = body.name_of("prompt") or judged
    following = await _encode_once(request, [second for _, second in pairs], special=False, param=judged)
    contexts = await _encode_once(request, [first for first, _ in pairs], special=True, param=param)
    if not all(contexts.values()) or not all(following.values()):
        raise APIError(400, "a text has no tokens; there is nothing to judge", param=judged)
    lengths = [len(contexts[first]) + len(following[second]) for first, second in pairs]
    check_lengths(state, lengths, param)

    def lay_out() -> list[PromptTokens]:
        return [PromptTokens(contexts[first] + following[second]) for first, second in pairs]

    num_judged = [len(following[second]) for _, second in pairs]
    num_tokens = sum(lengths)
    prompts = await beside_the_loop(lay_out, num_tokens=num_tokens)
    generation = await Generation.submit(request, body, prompts, _PARAMS, kind="score")
    choices = await until_disconnect(request, collect(request, generation))

    def judge() -> list[float]:
        return [mean_probability(choice, count) for choice, count in zip(choices, num_judged, strict=True)]

    return generation, await beside_the_loop(judge, num_tokens=num_tokens)


def mean_probability(choice: Collected, num_judged: int) -> float:
    """The geometric mean of the probabilities of the last `num_judged` tokens. Their records are dropped."""
    logprobs = [entry.logprob for entry in choice.prompt_logprobs[-num_judged:]]
    choice.prompt_logprobs.clear()  # millions of records are freed here rather than on the event loop
    return math.exp(sum(logprobs) / len(logprobs))


async def _encode_once(request: Request, texts: list[str], *, special: bool, param: str) -> dict[str, list[int]]:
    """Token ids of each text, tokenized by itself and once, however often it stands in `texts`."""
    different = list(dict.fromkeys(texts))
    encoded = await encode_texts(request, different, add_special_tokens=special, param=param)
    return dict(zip(different, encoded, strict=True))
