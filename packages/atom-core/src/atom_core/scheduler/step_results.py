"""What a step's results mean for a request: tokens, names for its full blocks, an end."""

from __future__ import annotations

import math

import msgspec

from atom_core.messages import (
    NOT_FINITE,
    EngineOutput,
    FinishReason,
    KVTransferParams,
    RequestStepOutput,
    ScheduledRequest,
    TokenLogprobs,
)
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.request_book import RequestBook


def take_result(
    book: RequestBook, request: Request, entry: ScheduledRequest, result: RequestStepOutput
) -> EngineOutput | None:
    """Apply `result` of an unfinished request, which may have been preempted since; None if there is no news of it."""
    if NOT_FINITE in result.token_ids:
        return _end_not_finite(book, request, "logits")
    # Vectors have length 1: their sum is a number unless one of theirs is none.
    if result.embedding is not None and not math.isfinite(sum(result.embedding)):
        return _end_not_finite(book, request, "hidden states")
    num_rejected = max(entry.num_samples - len(result.token_ids), 0)
    request.take_prompt_logprobs(entry.num_computed_tokens, result.prompt_logprobs)
    new_token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    arrived = result.token_ids
    if arrived and request.forced_token_ids:
        arrived = arrived + request.take_forced(len(arrived))
    for token_id in arrived:
        new_token_ids.append(token_id)
        finish_reason, stop_reason = request.append(token_id)
        if finish_reason is not None:
            break
    if not request.samples and entry.num_computed_tokens + entry.num_new_tokens >= request.num_prompt_tokens:
        finish_reason = "stop" if request.engine_request.kind == "embed" else "length"
    if request.status is RequestStatus.RUNNING:
        request.reject(num_rejected)
        num_computed_tokens = request.num_computed_tokens - request.num_tokens_in_flight
        # Tokens past a stop were computed, and their ids are not known.
        book.cache.publish(request.block_table, request.token_ids, num_computed_tokens)
        if entry.num_computed_tokens < request.num_prompt_tokens <= num_computed_tokens:
            book.release_siblings(request)
    # Those that were sampled come first.
    book.num_forced_tokens += max(len(new_token_ids) - len(result.token_ids), 0)
    request.tenant.pay_output(len(new_token_ids))
    kv_transfer_params = None if finish_reason is None else book.keep_for_peer(request)
    if finish_reason is not None:
        book.finish(request)
    if not new_token_ids and finish_reason is None:
        return None
    logprobs = None if result.logprobs is None else result.logprobs[: len(new_token_ids)]
    return make_output(
        request,
        new_token_ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        embedding=result.embedding,
        num_draft_tokens=max(entry.num_samples - 1, 0),
        num_accepted_tokens=max(min(len(new_token_ids), len(result.token_ids) - 1), 0),
        kv_transfer_params=kv_transfer_params,
    )


def _end_not_finite(book: RequestBook, request: Request, what: str) -> EngineOutput:
    book.num_not_finite += 1
    book.finish(request)
    output = make_output(request, finish_reason="error")
    problem = f"the model's {what} are not finite (NaN or infinity): its weights, or a number format, are at fault"
    return msgspec.structs.replace(output, error=problem, error_code=f"{what.replace(' ', '_')}_not_finite")


def make_output(
    request: Request,
    new_token_ids: list[int] | None = None,
    *,
    logprobs: list[TokenLogprobs] | None = None,
    finish_reason: FinishReason | None = None,
    stop_reason: int | None = None,
    embedding: list[float] | None = None,
    num_draft_tokens: int = 0,
    num_accepted_tokens: int = 0,
    kv_transfer_params: KVTransferParams | None = None,
) -> EngineOutput:
    """News of `request`; the prompt's logprobs come with the first tokens."""
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=new_token_ids or [],
        logprobs=logprobs,
        prompt_logprobs=None if finish_reason == "abort" else request.report_prompt_logprobs(),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        num_cached_tokens=request.num_cached_tokens,
        embedding=embedding,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        kv_transfer_params=kv_transfer_params,
        started=request.started,
    )
