"""``POST /v1/embeddings``."""

from __future__ import annotations

import array
import asyncio
import base64
import sys
from functools import partial
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_core import SamplingParams
from atom_core.engine.embedding_model import EmbeddingModel, shortened
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation, check_room
from atom_server.prompts.conversation import encode_messages
from atom_server.prompts.one_of_two import encode_text_or_picture
from atom_server.prompts.texts import PromptTokens, cut_prompt, encode_prompts
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.plain_route import PlainRoute
from atom_server.schemas.embeddings import EmbeddingRequest
from atom_server.schemas.fields.unsupported import refuse_unsupported
from atom_server.state import ServerState

router = APIRouter(tags=["embeddings"], route_class=PlainRoute)

# Nothing is generated; the parameters are only checked.
_PARAMS = SamplingParams(max_tokens=0)
_MAX_AT_ONCE = 4


@router.post("/v1/embeddings", response_class=Response, openapi_extra=described(EmbeddingRequest))
async def embeddings(request: Request) -> Response:
    """A vector for each prompt, or for a conversation."""
    state, body, headers = await accepted(request, EmbeddingRequest)
    refuse_unsupported(body.model_extra)
    body.check()
    check_room(request, body)
    model = state.engine.embedding_model
    model.check_dimensions(body.dimensions)
    pooling = model.choose_pooling(body.pooling)
    task = _task(body, state)
    prompts = await _prompts(request, body, model, task)
    generation = await Generation.submit(request, body, prompts, _PARAMS, kind="embd", pooling=pooling, adapter=task)
    collected = await until_disconnect(request, collect(request, generation))
    vectors = [choice.embedding for choice in collected if choice.embedding is not None]
    if len(vectors) < len(collected):
        raise APIError(500, "the engine gave no vector for a prompt")
    write = partial(_write, body, generation, vectors, normalizes=pooling.normalizes)
    # Thousands of vectors take longer than others on the event loop should wait.
    content = write() if len(vectors) <= _MAX_AT_ONCE else await asyncio.to_thread(write)
    return Response(content, headers=headers, media_type="application/json")


def _task(body: EmbeddingRequest, state: ServerState) -> str | None:
    """What the vectors are for, as `task` says, or `model`, which may name an adapter that is a task's."""
    adapter = state.adapter_of(body.model)
    if adapter and body.task is not None and body.task != adapter:
        message = f"'task' is {body.task[:64]!r}, and 'model' names the adapter {adapter!r}: leave one of them out"
        raise APIError(400, message, param="task")
    state.engine.embedding_model.check_task(body.task)
    return body.task or state.task_of(body.model)


async def _prompts(
    request: Request, body: EmbeddingRequest, model: EmbeddingModel, task: str | None
) -> list[PromptTokens]:
    """Token ids of each prompt, behind the model's own where they are texts; or those of the conversation."""
    if body.messages is None:
        before = model.prompt(body.prompt_name, task)
        given = [before + one if isinstance(one, str) else one for one in body.input or ()]
        return await encode_prompts(request, body, given, param="input")
    messages = [message.model_dump(exclude_unset=True) for message in body.messages]
    has_to_fit = body.truncate_prompt_tokens is None
    if model.has_two_towers:
        prompt = await encode_text_or_picture(request, messages, has_to_fit=has_to_fit)
        return [await cut_prompt(request, body, prompt, None)]
    prompt = await encode_messages(
        request,
        messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        has_to_fit=has_to_fit,
    )
    return [await cut_prompt(request, body, prompt, None)]


def _write(body: EmbeddingRequest, generation: Generation, vectors: list[list[float]], *, normalizes: bool) -> bytes:
    num_tokens = generation.num_prompt_tokens
    kept = (shortened(vector, body.dimensions, normalizes=normalizes) for vector in vectors)
    shown = [encode_vector(vector, body.encoding_format) for vector in kept]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]
    answer: dict[str, Any] = {
        "object": "list",
        "data": [msgspec.Raw(msgspec.json.encode(entry)) for entry in data],
        "model": generation.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return msgspec.json.encode(answer)


def encode_vector(vector: list[float], form: Literal["float", "base64"]) -> list[float] | str:
    """The vector as numbers, or as little-endian float32 in base64."""
    if form == "float":
        return vector
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
