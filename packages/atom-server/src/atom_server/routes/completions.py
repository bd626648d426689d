"""``POST /v1/completions``: text or token ids, one prompt or many, with echo and logprobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from atom_core import CompletionLogprobs, RequestOutput, SamplingParams, Tokenizer
from atom_server.body import read_request
from atom_server.collect import Collected, collect
from atom_server.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation import Generation
from atom_server.logprobs import joined, prompt_logprobs, text_logprobs
from atom_server.prompts import PromptTokens, encode_prompts
from atom_server.routes.openapi import described
from atom_server.schemas.completions import CompletionRequest
from atom_server.schemas.responses import Finish, TextChoice, TextCompletion, TextLogprobs
from atom_server.state import server_state
from atom_server.streaming import EventStream, event

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", response_class=Response, openapi_extra=described(CompletionRequest))
async def completions(request: Request) -> Response:
    """A continuation of each prompt, whole or as server-sent events."""
    state = server_state(request)
    state.check_takes_requests()
    body, headers = await read_request(request, CompletionRequest, state.options.max_body_bytes)
    state.check_model(body.model)
    _check(body)
    prompts = await encode_prompts(state, body.prompts)
    writer = TextWriter(body, prompts, state.engine.tokenizer)
    generation = await Generation.submit(request, body, prompts, writer.sampling_params(), kind="cmpl")
    if body.stream:
        return EventStream(request, generation, _events(generation, body, writer), headers=headers)
    collected = await until_disconnect(request, collect(request, generation))
    answer = TextCompletion(
        id=generation.id,
        created=generation.created,
        model=generation.model,
        choices=[writer.choice(choice) for choice in collected],
        usage=generation.usage(),
    )
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


def _check(body: CompletionRequest) -> None:
    body.refuse_what_is_missing()
    if body.max_tokens == 0 and not body.echo:
        raise APIError(400, "'max_tokens' must be at least 1, or 0 together with \"echo\": true", param="max_tokens")


class TextWriter:
    """Writes choices of a text completion: the prompt first where `echo` asks for it, with logprobs to match."""

    def __init__(self, body: CompletionRequest, prompts: list[PromptTokens], tokenizer: Tokenizer | None) -> None:
        self._body = body
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._wants_logprobs = body.logprobs is not None

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters."""
        body = self._body
        overrides = {"logprobs": body.logprobs}
        if body.echo and body.logprobs is not None:
            overrides["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        return body.sampling_params(**overrides)

    def choice(self, choice: Collected) -> TextChoice:
        """A whole choice."""
        logprobs = None
        if self._wants_logprobs:
            logprobs = self._logprobs(choice.index, choice.prompt_logprobs, choice.logprobs)
        return TextChoice(
            index=choice.index,
            text=self.prompt_text(choice.index) + choice.text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=UNSET if self._body.prompt_logprobs is None else prompt_logprobs(choice.prompt_logprobs),
        )

    def prompt_text(self, index: int) -> str:
        """What an echoed choice begins with."""
        if not self._body.echo:
            return ""
        prompt = self._prompts[index // self._body.n]
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.token_ids) if self._tokenizer else ""

    def news(self, index: int, output: RequestOutput, *, is_first: bool, offset: int) -> TextChoice:
        """One sample's news; `offset` is the length of the text sent before."""
        entries = output.logprobs or []
        logprobs = None
        if self._wants_logprobs:
            if is_first:
                logprobs = self._logprobs(index, output.prompt_logprobs or [], entries)
            else:
                logprobs = text_logprobs(entries, offset=offset)
        return TextChoice(
            index=index,
            text=(self.prompt_text(index) if is_first else "") + output.text_delta,
            logprobs=logprobs,
            finish_reason=self._finish(output) if output.finished else None,
            stop_reason=output.stop_reason,
        )

    def _finish(self, output: RequestOutput) -> Finish:
        return "length" if output.finish_reason == "length" else "stop"

    def _logprobs(
        self, index: int, of_prompt: list[CompletionLogprobs], of_output: list[CompletionLogprobs]
    ) -> TextLogprobs:
        if not self._body.echo:
            return text_logprobs(of_output)
        first_id = self._prompts[index // self._body.n].token_ids[0]
        first_token = self._tokenizer.id_to_text(first_id) if self._tokenizer else ""
        prompt = text_logprobs([None, *of_prompt], first_token=first_token)
        end = prompt.text_offset[-1] + len(prompt.tokens[-1])
        return joined([prompt, text_logprobs(of_output, offset=end)])


async def _events(generation: Generation, body: CompletionRequest, writer: TextWriter) -> AsyncGenerator[bytes, None]:
    options = body.stream_options
    running_usage = options is not None and options.continuous_usage_stats
    wants_usage = options is not None and options.include_usage

    def chunk(choices: list[TextChoice], with_usage: bool = running_usage) -> bytes:
        usage = generation.usage() if with_usage else None if wants_usage else UNSET
        return event(TextCompletion(generation.id, generation.created, generation.model, choices, usage=usage))

    sent = [0] * generation.num_choices
    started: set[int] = set()
    async for index, output in generation.outputs():
        choice = writer.news(index, output, is_first=index not in started, offset=sent[index])
        started.add(index)
        if choice.logprobs is not None and choice.logprobs.tokens:
            sent[index] = choice.logprobs.text_offset[-1] + len(choice.logprobs.tokens[-1])
        if choice.text or output.finished or (choice.logprobs is not None and choice.logprobs.tokens):
            yield chunk([choice])
    if wants_usage:
        yield chunk([], with_usage=True)
