"""``POST /v1/score`` and ``POST /v1/rerank``: how likely the model finds one text after another.

The score is the geometric mean of the probabilities of the second text's tokens, given the first: from 0 to 1.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_core import SamplingParams
from atom_core.engine.inputs.checked_prompts import beside_the_loop
from atom_core.engine.inputs.validation import prompt_too_long
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import Collected, collect
from atom_server.generation.generation import Generation, check_room
from atom_server.prompts.texts import PromptTokens, encode_texts
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.schemas.scores import RerankRequest, ScoreRequest
from atom_server.state import ServerState, server_state

router = APIRouter(tags=["scores"])

_PARAMS = SamplingParams(max_tokens=0, prompt_logprobs=0)
# The most tokens of all pairs of a request. Each pair repeats its texts: a long query counts for every document.
MAX_TOTAL_TOKENS = 2**22


@router.post("/v1/score", response_class=Response, openapi_extra=described(ScoreRequest))
async def score(request: Request) -> Response:
    """How likely each second text is after its first."""
    _, body, headers = await accepted(request, ScoreRequest)
    generation, scores = await _score(request, body, body.pairs(), judged="text_2")
    answer: dict[str, Any] = {
        "id": generation.id,
        "object": "list",
        "created": generation.created,
        "model": generation.model,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)],
        "usage": _usage(generation),
    }
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


@router.post("/v1/rerank", response_class=Response, openapi_extra=described(RerankRequest))
async def rerank(request: Request) -> Response:
    """The documents, the one after which the query is likeliest first."""
    _, body, headers = await accepted(request, RerankRequest)
    generation, scores = await _score(request, body, body.pairs(), judged="query")
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        results = [result | {"document": {"text": body.documents[result["index"]]}} for result in results]
    answer = {"id": generation.id, "model": generation.model, "results": results, "usage": _usage(generation)}
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


async def _score(
    request: Request, body: ScoreRequest | RerankRequest, pairs: list[tuple[str, str]], *, judged: str
) -> tuple[Generation, list[float]]:
    state = server_state(request)
    check_room(request, body)
    param = body.name_of("prompt") or judged
    following = await _encode_once(request, [second for _, second in pairs], special=False, param=judged)
    contexts = await _encode_once(request, [first for first, _ in pairs], special=True, param=param)
    if not all(contexts.values()) or not all(following.values()):
        raise APIError(400, "a text has no tokens; there is nothing to judge", param=judged)
    lengths = [len(contexts[first]) + len(following[second]) for first, second in pairs]
    _check_lengths(state, lengths, param)

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


def _check_lengths(state: ServerState, lengths: list[int], param: str) -> None:
    """Refuse pairs that do not fit the model, and more tokens than one request may have, before they are laid out."""
    context = state.engine.info.max_model_len
    if (longest := max(lengths)) >= context:
        raise prompt_too_long(longest, context, param)
    if (total := sum(lengths)) > MAX_TOTAL_TOKENS:
        message = f"all pairs together have {total} tokens; at most {MAX_TOTAL_TOKENS} fit one request: send fewer"
        raise APIError(400, message, param=param, code="too_many_tokens")


def _usage(generation: Generation) -> dict[str, int]:
    num_tokens = generation.num_prompt_tokens
    return {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens}
