"""`Generation`: all samples of all prompts of one HTTP request, from submission to the last token or an abort."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import UNSET, UnsetType
from starlette.requests import Request

from atom_core import AsyncEngine, InvalidRequestError, RequestOutput, SamplingParams
from atom_core.engine.inputs.checked_prompts import CheckedPrompts
from atom_core.engine.inputs.validation import MAX_PRIORITY
from atom_core.engine.outputs.request_stream import RequestStream
from atom_core.messages import Image, KVTransferParams, Pooling, RequestState
from atom_server.access.guard import caller_of
from atom_server.access.keys import ANYBODY, Caller
from atom_server.bodies.client_names import SAME, Names, renamed
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError, engine_dead, shutting_down
from atom_server.generation.tallies import ServedPrompt, Tallies
from atom_server.prompts.texts import PromptTokens
from atom_server.request_log import RequestRecord
from atom_server.schemas.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from atom_server.schemas.fields.model_request import ModelRequest
from atom_server.state import ServerState, server_state


class Generation:
    """Submits a request's prompts at once and merges their news.

    Sample ``s`` of prompt ``p`` is choice ``p * n + s``. Close it whatever happens: that aborts what still runs.

    Attributes:
        id: the answer's id, e.g. "cmpl-5f2c...".
        prompts, model, created: what the answer names.
        submitted: when, by the monotonic clock.
        num_prompt_tokens: tokens of all prompts, each counted once.
        num_reasoning_tokens: how many tokens so far are reasoning; set by whoever reads the text.
        kv_transfer_params: what another server needs to go on from the prompt; UNSET where there is nothing.
    """

    def __init__(
        self,
        state: ServerState,
        body: ModelRequest,
        prompts: Sequence[PromptTokens],
        stream: RequestStream,
        *,
        id: str,
        params: SamplingParams,
        names: Names,
        caller: Caller = ANYBODY,
    ) -> None:
        self.id = id
        self.model = state.check_model(body.model)
        self.created = int(time.time())
        self.submitted = time.monotonic()
        self.prompts = list(prompts)
        self.num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self.num_reasoning_tokens = 0
        self.kv_transfer_params: KVTransferParams | UnsetType = UNSET
        self.n = params.n
        self._params = params
        self._state, self._body, self._names, self._caller = state, body, names, caller
        self._stream = stream
        self._prompt_index = {request_id: index for index, request_id in enumerate(stream.request_ids)}
        self._tallies = Tallies(len(prompts) * params.n)
        self._num_cached = [0] * len(prompts)
        self._sum_cached = 0
        self._abort_reason: APIError | None = None

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
        adapter: str | None = None,
    ) -> Generation:
        """Check every prompt, then submit them all: to generate, or with `pooling` to be embedded or classified.

        Errors name fields as `body` does, or as `names` has them where the client knows other names. `adapter` is the
        name of the adapter that computes them; None leaves it to the body's `model`.

        Raises:
            APIError, InvalidRequestError, EngineDeadError: nothing was left running.
        """
        state: ServerState = request.app.state.server
        state.check_takes_requests()
        caller = caller_of(request)
        check_room(request, body, names)
        try:
            params, checked = await until_disconnect(request, _prepared(state.engine, params, prompts))
            # Pictures take their tokens by now.
            prompts = [prompt._replace(token_ids=ids) for prompt, ids in zip(prompts, checked.token_ids, strict=True)]
            num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
            state.rates.take_prompt(caller, num_tokens)
            if caller.is_batch:
                state.batch_share.check(state.active, len(prompts) * params.n, num_tokens)
            state.check_model(body.model)  # its adapter may have been unloaded meanwhile
            stream = state.engine.submit(
                checked,
                params if pooling is None else pooling,
                priority=MAX_PRIORITY if caller.is_batch else body.priority,
                cache_salt=caller.cache_salt(body.cache_salt),
                tenant=caller.tenant,
                adapter=adapter or state.adapter_of(body.model),
            )
        except InvalidRequestError as error:
            raise renamed(_in_words_of(body, error), names) from None
        id = f"{kind}-{body.request_id or uuid.uuid4().hex}"
        generation = cls(state, body, prompts, stream, id=id, params=params, names=names, caller=caller)
        state.active.add(generation)
        request.state.record.prompt_tokens = generation.num_prompt_tokens
        request.state.record.answer_id = generation.id
        return generation

    @property
    def is_of_batch(self) -> bool:
        """Whether it is a line of a batch, for which nobody waits."""
        return self._caller.is_batch

    @property
    def num_choices(self) -> int:
        """Samples of all prompts."""
        return len(self._tallies)

    async def news(self) -> Iterator[tuple[int, RequestOutput]] | None:
        """The next news and those that are there with it, each with the number of its choice; None after the last.

        News count as they are taken from the iterator, which raises what ended the request.

        Raises:
            APIError: 503 where the engine died or the server gave the request up, 500 where this request failed.
            InvalidRequestError: the engine found that the request's grammar is not sound.
        """
        outputs = await self._stream.together()
        return map(self._take, outputs) if outputs else None

    async def abort(self, reason: APIError | None = None) -> None:
        """End what still runs. The reader of the outputs is told `reason`, or that the server is shutting down."""
        self._abort_reason = reason
        await self._state.engine.abort(self._stream)

    async def close(self) -> None:
        """Abort what still runs, whoever reads the outputs. Safe to call again."""
        if self in self._state.active:
            self._state.active.discard(self)
            served = zip(self._stream.engines, self.prompts, self._num_cached, strict=True)
            self._state.metrics.take_end(
                self._tallies,
                self._params,
                [ServedPrompt(engine, len(prompt.token_ids), cached) for engine, prompt, cached in served],
            )
        await self._stream.aclose()

    def usage(self) -> Usage:
        """What has been used so far."""
        tallies = self._tallies
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=tallies.num_tokens,
            total_tokens=self.num_prompt_tokens + tallies.num_tokens,
            prompt_tokens_details=PromptTokensDetails(self._sum_cached),
            completion_tokens_details=CompletionTokensDetails(
                self.num_reasoning_tokens,
                accepted_prediction_tokens=tallies.num_accepted_tokens,
                rejected_prediction_tokens=tallies.num_draft_tokens - tallies.num_accepted_tokens,
            ),
            ttft_s=round(tallies.ttft, 6),
            tpot_s=round(tallies.seconds_per_token, 6),
            latency_s=round(tallies.latency, 6),
        )

    def describe(self, states: Mapping[str, Sequence[RequestState]]) -> dict[str, object]:
        """How far the request has got, without any text.

        Args:
            states: how far its samples have got in the engine, by the ids of their prompts; finished ones have none.
        """
        own = [state for request_id in self._stream.request_ids for state in states.get(request_id, ())]
        return {
            "id": self.id,
            "key": self._caller.name,
            "age_s": round(time.monotonic() - self.submitted, 3),
            "phases": dict(Counter(state.phase for state in own)),
            "num_samples": self.num_choices,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self._sum_cached,
            "computed_tokens": sum(state.num_computed_tokens for state in own),
            "output_tokens": self._tallies.num_tokens,
        }

    def report(self, record: RequestRecord) -> None:
        """Fill in the log line's numbers."""
        usage = self.usage()
        record.prompt_tokens = usage.prompt_tokens
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        record.output_tokens = usage.completion_tokens
        record.queued = self._tallies.queued or 0.0
        record.ttft, record.tpot = usage.ttft_s, usage.tpot_s
        record.finish_reasons = self._tallies.finish_reasons()

    def _take(self, output: RequestOutput) -> tuple[int, RequestOutput]:
        prompt_index = self._prompt_index[output.request_id]
        index = prompt_index * self.n + output.index
        before = self._tallies.num_tokens
        gap = self._tallies.count(index, output)
        num_new = self._tallies.num_tokens - before
        self._state.metrics.tokens.take(self._stream.engines[prompt_index], num_new, gap)
        self._state.rates.take_output(self._caller, num_new)
        self.kv_transfer_params = output.kv_transfer_params or self.kv_transfer_params
        if output.index == 0:
            self._sum_cached += output.num_cached_tokens - self._num_cached[prompt_index]
            self._num_cached[prompt_index] = output.num_cached_tokens
        if output.finish_reason in ("abort", "error"):
            raise self._failure(output)
        return index, output

    def _failure(self, output: RequestOutput) -> APIError | InvalidRequestError:
        if output.finish_reason == "abort":
            return self._abort_reason or shutting_down()
        if output.error_code == "slow_reader":
            return APIError(408, output.error or "", code=output.error_code)
        if output.error_code == "request_timeout":
            return APIError(504, f"the request took too long: {output.error}", code=output.error_code)
        if output.error_code == "model_not_found":
            return APIError(404, f"the model is not served any more: {output.error}", code=output.error_code)
        if output.error_code == "engine_dead":
            return engine_dead(output.error)
        if output.error_code in ("invalid_grammar", "queue_full"):
            name = "structured_outputs"
            error = InvalidRequestError(f"{name}: {output.error}", name, output.error_code)
            return renamed(_in_words_of(self._body, error), self._names)
        message = f"the request failed in the engine: {output.error or 'no reason is known'}"
        return APIError(500, message, code=output.error_code or "internal_error")


async def _prepared(
    engine: AsyncEngine, params: SamplingParams, prompts: Sequence[PromptTokens]
) -> tuple[SamplingParams, CheckedPrompts]:
    """What `AsyncEngine.submit` takes, after the slow work on it."""
    return await engine.prepare(params), await engine.check_prompts(*_columns(prompts))


def _columns(prompts: Sequence[PromptTokens]) -> tuple[list[list[int]], list[int], list[tuple[Image, ...]]]:
    """Tokens, tokens of first texts, and pictures of prompts; the latter two empty where no prompt has any."""
    firsts, images = [prompt.num_first_tokens for prompt in prompts], [prompt.images for prompt in prompts]
    return [prompt.token_ids for prompt in prompts], firsts if any(firsts) else [], images if any(images) else []


def check_room(request: Request, body: ModelRequest, names: Names = SAME) -> None:
    """Refuse a request with more samples than there is room for, before each of them takes memory.

    Raises:
        InvalidRequestError: see `AsyncEngine.check_room` and `BatchShare`.
    """
    state, caller = server_state(request), caller_of(request)
    try:
        if caller.is_batch:
            state.batch_share.check(state.active, body.num_prompts * body.num_samples_each)
        state.engine.check_room(body.num_prompts, body.num_samples_each, tenant=caller.tenant)
    except InvalidRequestError as error:
        raise renamed(_in_words_of(body, error), names) from None


def _in_words_of(body: ModelRequest, error: InvalidRequestError) -> InvalidRequestError:
    """The engine's error with the client's names of fields."""
    name = body.name_of(error.param)
    if name is None or name == error.param:
        return error
    message = error.message if error.param == "prompt" else error.message.replace(error.param or "", name)
    if name == "tools":
        message = message.replace("structural_tag is", "the schema of a function is")
    return InvalidRequestError(message, name, error.code)
