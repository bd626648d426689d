"""`Generation`: all samples of all prompts of one HTTP request, from submission to the last token or an abort."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from atom_core import EngineDeadError, InvalidRequestError, RequestOutput, SamplingParams
from atom_core.engine.request_stream import RequestStream
from atom_core.messages import Pooling
from atom_server.client_names import SAME, Names, renamed
from atom_server.disconnect import cancel_all
from atom_server.errors import APIError, engine_dead, shutting_down
from atom_server.prompts import PromptTokens
from atom_server.request_log import RequestRecord
from atom_server.schemas.model_request import ModelRequest
from atom_server.schemas.responses import CompletionTokensDetails, PromptTokensDetails, Usage
from atom_server.state import ServerState


@dataclass
class Tally:
    """What one sample has used so far."""

    num_tokens: int = 0
    ttft: float = 0.0
    latency: float = 0.0
    finish_reason: str | None = None


class Generation:
    """Submits a request's prompts at once and merges their news.

    Sample ``s`` of prompt ``p`` is choice ``p * n + s``. Close it whatever happens: that aborts what still runs.

    Attributes:
        id: of the answer, e.g. "cmpl-5f2c...".
        prompts, model, created: for the answer.
        num_reasoning_tokens: of the tokens so far; whoever reads the text tells.
    """

    def __init__(self, state: ServerState, id: str, model: str, prompts: Sequence[PromptTokens], n: int) -> None:
        self.id = id
        self.model = model
        self.created = int(time.time())
        self.prompts = list(prompts)
        self.n = n
        self._state = state
        self._tallies = [Tally() for _ in range(len(prompts) * n)]
        self._num_cached = [0] * len(prompts)
        self.num_reasoning_tokens = 0
        self._body: ModelRequest | None = None
        self._names = SAME
        self._streams: list[RequestStream] = []

    @classmethod
    async def submit(
        cls,
        request: Request,
        body: ModelRequest,
        prompts: Sequence[PromptTokens],
        params: SamplingParams,
        *,
        kind: str,
        pooling: Pooling | None = None,
        names: Names = SAME,
    ) -> Generation:
        """Check every prompt, then give all to the engine: for tokens, or with `pooling` for embeddings.

        Errors name fields as `body` does, and by `names` where the client calls those otherwise.

        Raises:
            APIError, InvalidRequestError, EngineDeadError: nothing was left running.
        """
        state: ServerState = request.app.state.server
        state.check_takes_requests()
        id = f"{kind}-{body.request_id or uuid.uuid4().hex}"
        generation = cls(state, id, state.check_model(body.model), prompts, params.n)
        generation._names = names
        try:
            params = await state.engine.prepare(params)
            generation._start(params, body, pooling)
        except InvalidRequestError as error:
            raise renamed(_in_words_of(body, error), names) from None
        request.state.record.prompt_tokens = generation.num_prompt_tokens
        return generation

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_choices(self) -> int:
        """Samples of all prompts."""
        return len(self._tallies)

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """News with the number of the choice that they belong to, until every choice has finished.

        Raises:
            APIError: 503 where the engine died or the server gave the request up, 500 where this request failed.
            InvalidRequestError: only the engine could see that its grammar is not sound.
        """
        merged = self._only_prompt() if len(self._streams) == 1 else self._merged_prompts()
        async with contextlib.aclosing(merged):
            async for prompt_index, output in merged:
                choice = prompt_index * self.n + output.index
                self._count(prompt_index, choice, output)
                if output.finish_reason in ("abort", "error"):
                    raise self._failure(output)
                yield choice, output

    async def close(self) -> None:
        """Abort what still runs. Safe to call again."""
        self._state.active.pop(self.id, None)
        for stream in self._streams:
            await stream.aclose()

    def usage(self) -> Usage:
        """What has been used so far."""
        num_outputs = sum(tally.num_tokens for tally in self._tallies)
        started = [tally for tally in self._tallies if tally.num_tokens]
        rates = [(t.latency - t.ttft) / (t.num_tokens - 1) for t in started if t.num_tokens > 1]
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=num_outputs,
            total_tokens=self.num_prompt_tokens + num_outputs,
            prompt_tokens_details=PromptTokensDetails(sum(self._num_cached)),
            completion_tokens_details=CompletionTokensDetails(self.num_reasoning_tokens),
            ttft_s=round(min((tally.ttft for tally in started), default=0.0), 6),
            tpot_s=round(sum(rates) / len(rates), 6) if rates else 0.0,
            latency_s=round(max((tally.latency for tally in self._tallies), default=0.0), 6),
        )

    def report(self, record: RequestRecord) -> None:
        """Fill in the log line's numbers."""
        usage = self.usage()
        record.prompt_tokens = usage.prompt_tokens
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        record.output_tokens = usage.completion_tokens
        record.ttft, record.tpot = usage.ttft_s, usage.tpot_s
        record.finish_reasons = [tally.finish_reason or "abort" for tally in self._tallies]

    def _start(self, params: SamplingParams, body: ModelRequest, pooling: Pooling | None) -> None:
        prompts = [prompt.token_ids for prompt in self.prompts]
        request_ids = [f"{self.id}-{index}" for index in range(len(prompts))]
        self._streams = self._state.engine.submit(
            prompts,
            params if pooling is None else pooling,
            request_ids=request_ids,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
        self._state.active[self.id] = request_ids
        self._body = body

    async def _only_prompt(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        async for output in self._streams[0]:
            yield 0, output

    async def _merged_prompts(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

        async def pump(index: int, stream: RequestStream) -> None:
            try:
                async for output in stream:
                    queue.put_nowait((index, output))
                queue.put_nowait((index, None))
            except Exception as error:
                queue.put_nowait((index, error))

        num_open = len(self._streams)
        pumps = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(self._streams)]
        try:
            while num_open:
                index, news = await queue.get()
                if isinstance(news, Exception):
                    raise news
                if news is None:
                    num_open -= 1
                else:
                    yield index, news
        finally:
            await cancel_all(*pumps)

    def _count(self, prompt_index: int, choice: int, output: RequestOutput) -> None:
        tally = self._tallies[choice]
        tally.num_tokens = output.num_output_tokens
        tally.ttft, tally.latency = output.ttft, output.latency
        tally.finish_reason = output.finish_reason
        if output.index == 0:
            self._num_cached[prompt_index] = output.num_cached_tokens

    def _failure(self, output: RequestOutput) -> APIError | InvalidRequestError:
        if output.finish_reason == "abort":
            return shutting_down()
        if output.error_code in ("invalid_grammar", "queue_full") and self._body is not None:
            name = "structured_outputs"
            error = InvalidRequestError(f"{name}: {output.error}", name, output.error_code)
            return renamed(_in_words_of(self._body, error), self._names)
        try:
            self._state.engine.check_health()
        except EngineDeadError as error:
            return engine_dead(error)
        return APIError(500, f"the request failed in the engine: {output.error or 'no reason is known'}")


def _in_words_of(body: ModelRequest, error: InvalidRequestError) -> InvalidRequestError:
    """The engine's complaint with the names that the client used."""
    name = body.name_of(error.param)
    if name is None or name == error.param:
        return error
    message = error.message if error.param == "prompt" else error.message.replace(error.param or "", name)
    if name == "tools":
        message = message.replace("structural_tag is", "the schema of a function is")
    return InvalidRequestError(message, name, error.code)
