"""``POST /v1/completions``: text or token ids, one prompt or many, with echo and logprobs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from atom_core import RequestOutput
from atom_server.answers.streaming import EventStream, EventWriter, event
from atom_server.answers.text_writer import TextWriter
from atom_server.answers.whole_answer import encoded, packed
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation, check_room
from atom_server.prompts.texts import encode_prompts
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.plain_route import PlainRoute
from atom_server.schemas.answers import TextChoice, TextCompletion
from atom_server.schemas.completions import CompletionRequest

router = APIRouter(tags=["completions"], route_class=PlainRoute)


@router.post("/v1/completions", response_class=Response, openapi_extra=described(CompletionRequest))
async def completions(request: Request) -> Response:
    """A continuation of each prompt, whole or as server-sent events."""
    state, body, headers = await accepted(request, CompletionRequest)
    _check(body)
    check_room(request, body)
    prompts = await encode_prompts(request, body, body.prompt, max_tokens=body.max_tokens, with_text=body.echo)
    writer = TextWriter(body, prompts, state.engine.tokenizer)
    generation = await Generation.submit(request, body, prompts, writer.sampling_params(), kind="cmpl")
    if body.stream:
        return EventStream(request, generation, _Chunks(generation, body, writer), headers=headers)
    collected = await until_disconnect(request, collect(request, generation))

    def write() -> TextCompletion:
        return TextCompletion(
            id=generation.id,
            created=generation.created,
            model=generation.model,
            choices=[packed(writer.choice(choice)) for choice in collected],
            usage=generation.usage(),
            kv_transfer_params=generation.kv_transfer_params,
        )

    return Response(await encoded(collected, write), headers=headers, media_type="application/json")


def _check(body: CompletionRequest) -> None:
    body.refuse_what_is_missing()
    if body.max_tokens == 0 and not body.echo:
        raise APIError(400, "'max_tokens' must be at least 1, or 0 together with \"echo\": true", param="max_tokens")


class _Chunks(EventWriter):
    """The news of each choice, then the usage where asked for."""

    def __init__(self, generation: Generation, body: CompletionRequest, writer: TextWriter) -> None:
        options = body.stream_options
        self._running_usage = options is not None and options.continuous_usage_stats
        self._wants_usage = options is not None and options.include_usage
        self._generation, self._writer = generation, writer

    def take(self, index: int, output: RequestOutput) -> bytes:
        choice = self._writer.news(index, output)
        return b"" if choice is None else self._chunk([choice])

    def end(self) -> bytes:
        return (self._chunk([], with_usage=True) if self._wants_usage else b"") + super().end()

    def _chunk(self, choices: list[TextChoice], *, with_usage: bool = False) -> bytes:
        generation = self._generation
        has_usage = with_usage or self._running_usage
        usage = generation.usage() if has_usage else None if self._wants_usage else UNSET
        return event(TextCompletion(generation.id, generation.created, generation.model, choices, usage=usage))
