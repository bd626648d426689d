"""``POST /v1/score`` and ``POST /v1/rerank``: how well texts go together, in the way that the model has.

A reranker says it by its head or its answer, a model that makes vectors by their cosine, and any other by how likely
one text is after the other: see `atom_server.scoring`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_server.generation.generation import Generation
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.schemas.scores import RerankRequest, ScoreRequest
from atom_server.scoring import score_pairs

router = APIRouter(tags=["scores"])


@router.post("/score", response_class=Response, openapi_extra=described(ScoreRequest), include_in_schema=False)
@router.post("/v1/score", response_class=Response, openapi_extra=described(ScoreRequest))
async def score(request: Request) -> Response:
    """How well each second text goes with its first."""
    _, body, headers = await accepted(request, ScoreRequest)
    generation, scores = await score_pairs(request, body)
    answer: dict[str, Any] = {
        "id": generation.id,
        "object": "list",
        "created": generation.created,
        "model": generation.model,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)],
        "usage": usage_of(generation),
    }
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


@router.post("/rerank", response_class=Response, openapi_extra=described(RerankRequest), include_in_schema=False)
@router.post("/v1/rerank", response_class=Response, openapi_extra=described(RerankRequest))
async def rerank(request: Request) -> Response:
    """The documents, the one that goes best with the query first."""
    _, body, headers = await accepted(request, RerankRequest)
    generation, scores = await score_pairs(request, body)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if body.return_documents:
        results = [result | {"document": {"text": body.documents[result["index"]]}} for result in results]
    answer = {"id": generation.id, "model": generation.model, "results": results, "usage": usage_of(generation)}
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


def usage_of(generation: Generation) -> dict[str, int]:
    """Tokens of a request that generates nothing."""
    num_tokens = generation.num_prompt_tokens
    return {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens}
