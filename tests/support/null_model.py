"""An executor without a model: it answers every step at once with tokens that depend on nothing but the request."""

from __future__ import annotations

from collections.abc import Callable

from atom_core.failure import Failure
from atom_core.messages import (
    ModelOutput,
    NewRequest,
    RequestStepOutput,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)
from atom_core.worker.runner import Masks, RunnerInfo


class NullExecutor:
    """See `Executor`. It knows a request from its first step until it is told to drop it, and no longer."""

    is_preparing = False
    failure: Failure | None = None
    stopped_ranks: tuple[int, ...] = ()

    def __init__(self, num_blocks: int, max_model_len: int) -> None:
        self._info = RunnerInfo(num_blocks=num_blocks, max_model_len=max_model_len)
        self._requests: dict[str, NewRequest] = {}

    def start(self) -> RunnerInfo:
        return self._info

    def submit(self, step: SchedulerOutput) -> NullStepHandle:
        for request_id in step.dropped_request_ids:
            del self._requests[request_id]
        self._requests |= {new.request_id: new for new in step.new_requests}
        results = [_result(self._requests[entry.request_id], entry) for entry in step.scheduled]
        return NullStepHandle(lambda: ModelOutput(step.step_id, results))

    def sleep(self, level: int) -> None: ...

    def wake_up(self) -> None: ...

    def prepare(self) -> bool:
        return False

    def profile(self, *, start: bool) -> None: ...

    def shutdown(self) -> None: ...


class NullStepHandle:
    """See `StepHandle`."""

    def __init__(self, result: Callable[[], ModelOutput]) -> None:
        self.result = result

    def sample(self, masks: Masks | None = None) -> None: ...

    def wait_for_launch(self) -> None: ...


def _result(request: NewRequest, entry: ScheduledRequest) -> RequestStepOutput:
    params, first = request.sampling_params, entry.num_computed_tokens
    end = first + entry.num_new_tokens
    in_prompt = max(min(end, request.num_prompt_tokens - 1) - first, 0)
    wants_vector = request.pooling is not None and end >= request.num_prompt_tokens
    token_ids = [3 + end % 7] if entry.num_samples else []
    return RequestStepOutput(
        entry.request_id,
        token_ids,
        None if params.logprobs is None else [TokenLogprobs(token_id, -1.0, 1, []) for token_id in token_ids],
        None if params.prompt_logprobs is None else [TokenLogprobs(3, -1.0, 1, [])] * in_prompt,
        [1.0] if wants_vector else None,
    )
