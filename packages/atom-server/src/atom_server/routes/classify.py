"""``POST /classify``: the label of each text, by a model whose head scores the labels that its config names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_core.engine.judging import Labels
from atom_server.connections.disconnect import until_disconnect
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation, check_room
from atom_server.prompts.texts import encode_prompts
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.scores import usage_of
from atom_server.schemas.classify import ClassifyRequest
from atom_server.schemas.fields.unsupported import refuse_unsupported
from atom_server.scoring.labels import PARAMS, labels_of, probabilities_of

router = APIRouter(tags=["scores"])


@router.post("/v1/classify", response_class=Response, openapi_extra=described(ClassifyRequest), include_in_schema=False)
@router.post("/classify", response_class=Response, openapi_extra=described(ClassifyRequest))
async def classify(request: Request) -> Response:
    """The likeliest label of each text, and the probability of every one, in the order of the config."""
    state, body, headers = await accepted(request, ClassifyRequest)
    refuse_unsupported(body.model_extra)
    labels = labels_of(state)
    check_room(request, body)
    prompts = await encode_prompts(request, body, body.input, param="input")
    generation = await Generation.submit(request, body, prompts, PARAMS, kind="classify", pooling=labels.pooling)
    choices = await until_disconnect(request, collect(request, generation))
    answer: dict[str, Any] = {
        "id": generation.id,
        "object": "list",
        "created": generation.created,
        "model": generation.model,
        "data": [_entry(index, labels, probabilities_of(labels, one)) for index, one in enumerate(choices)],
        "usage": usage_of(generation),
    }
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


def _entry(index: int, labels: Labels, probabilities: Sequence[float]) -> dict[str, Any]:
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return {
        "index": index,
        "label": labels.names[best],
        "probs": list(probabilities),
        "num_classes": len(labels.names),
    }
