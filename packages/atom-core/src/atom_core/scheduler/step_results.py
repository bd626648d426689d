"""What a step's results mean for a request: tokens, names for its full blocks, an end."""

from __future__ import annotations

import math

from atom_core.messages import NOT_FINITE, EngineOutput, RequestStepOutput, ScheduledRequest
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.request_book import RequestBook


def take_result(
    book: RequestBook, request: Request, entry: ScheduledRequest, result: RequestStepOutput
) -> EngineOutput | None:
    """Apply `result` of an unfinished request, which may have been preempted since; None if there is no news of it."""
    if NOT_FINITE in result.token_ids:
        return _end_not_finite(book, request, "logits")
    # A sum is a number unless one of its terms is none.
    if result.embedding is not None and not math.isfinite(sum(result.embedding)):
        return _end_not_finite(book, request, "hidden states")
    arrived, num_sampled = result.token_ids, len(result.token_ids)
    if result.prompt_logprobs is not None:
        request.take_prompt_logprobs(entry.num_computed_tokens, result.prompt_logprobs)
    if num_sampled and request.forced_token_ids:
        arrived = arrived + request.take_forced(num_sampled)
    new_token_ids, finish_reason, stop_reason = request.append(arrived)
    if not request.samples and entry.num_computed_tokens + entry.num_new_tokens >= request.num_prompt_tokens:
        finish_reason = "stop" if request.engine_request.kind == "embed" else "length"
    if request.status is RequestStatus.RUNNING:
        if num_sampled < entry.num_samples:
            request.reject(entry.num_samples - num_sampled)
        num_computed_tokens = request.num_computed_tokens - request.num_tokens_in_flight
        # Tokens past a stop were computed, and their ids are not known.
        book.cache.publish(request.block_table, request.token_ids, num_computed_tokens)
        if entry.num_computed_tokens < request.num_prompt_tokens <= num_computed_tokens:
            book.release_siblings(request)
    num_new = len(new_token_ids)
    if num_new > num_sampled:  # those that were sampled come first
        book.num_forced_tokens += num_new - num_sampled
    request.tenant.pay_output(num_new)
    kv_transfer_params = None if finish_reason is None else book.keep_for_peer(request)
    if finish_reason is not None:
        book.finish(request)
    elif not num_new:
        return None
    has_drafts = entry.num_samples > 1
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=new_token_ids,
        logprobs=None if result.logprobs is None else result.logprobs[:num_new],
        prompt_logprobs=None if request.is_reported_prompt else request.report_prompt_logprobs(),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        num_cached_tokens=request.num_cached_tokens,
        embedding=result.embedding,
        num_draft_tokens=entry.num_samples - 1 if has_drafts else 0,
        num_accepted_tokens=max(min(num_new, num_sampled - 1), 0) if has_drafts else 0,
        started=request.started,
        kv_transfer_params=kv_transfer_params,
    )


def aborted(request: Request) -> EngineOutput:
    """The last news of a request that is aborted."""
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason="abort",
        num_cached_tokens=request.num_cached_tokens,
        started=request.started,
    )


def _end_not_finite(book: RequestBook, request: Request, what: str) -> EngineOutput:
    book.num_not_finite += 1
    book.finish(request)
    problem = f"the model's {what} are not finite (NaN or infinity): its weights, or a number format, are at fault"
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=[],
        prompt_logprobs=request.report_prompt_logprobs(),
        finish_reason="error",
        num_cached_tokens=request.num_cached_tokens,
        error=problem,
        error_code=f"{what.replace(' ', '_')}_not_finite",
        started=request.started,
    )
