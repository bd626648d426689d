"""`StepsInFlight`: steps from their submission to the scheduler's report; what becomes of those that fail."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from atom_core.errors import EngineDeadError
from atom_core.executor.protocol import Executor, StepHandle
from atom_core.messages import EngineOutput, ModelOutput, RequestStepOutput, SchedulerOutput
from atom_core.scheduler import Scheduler

logger = logging.getLogger(__name__)

# A device that fails this many steps in a row will not recover.
MAX_FAILED_STEPS = 3


@dataclass
class Step:
    """A step in flight. What it samples for the requests in `void` is dropped: their masks were not ready."""

    scheduled: SchedulerOutput
    handle: StepHandle
    void: set[str] = field(default_factory=set)


class StepsInFlight:
    """Steps that were submitted and not collected, the oldest first.

    Args:
        executor: runs them.
        scheduler: hears of every one.
        follow: is told of all news of requests, too.

    Attributes:
        num_late_captures, num_late_compilations, num_expert_moves: what steps have waited for, as `ModelOutput` has it.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, follow: Callable[[list[EngineOutput]], None]) -> None:
        self.num_late_captures = self.num_late_compilations = self.num_expert_moves = 0
        self._executor, self._scheduler, self._follow = executor, scheduler, follow
        self._steps: deque[Step] = deque()
        self._num_failed = 0

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, scheduled: SchedulerOutput) -> Step:
        """Start a step; its sampler waits to be released."""
        step = Step(scheduled, self._executor.submit(scheduled))
        self._steps.append(step)
        return step

    def collect(self) -> list[EngineOutput]:
        """Wait for the oldest step, and report it; the news of its requests.

        If it failed, its requests end with "error", and so do those of the steps after it, which depend on it.

        Raises:
            EngineDeadError: several steps failed in a row, or the workers are gone.
        """
        step = self._steps[0]
        try:
            output = step.handle.result()
        except EngineDeadError:
            raise  # the workers are gone, and no step can follow
        except Exception as error:
            self._steps.popleft()
            logger.exception("step %d failed", step.scheduled.step_id)
            return self._fail(step.scheduled, error)
        # Not before: a wait that Ctrl-C ended is taken up again, and the scheduler hears of every step.
        self._steps.popleft()
        self._num_failed = 0
        self.num_late_captures, self.num_late_compilations = output.num_late_captures, output.num_late_compilations
        self.num_expert_moves = output.num_expert_moves
        news = self._scheduler.update(step.scheduled, _without(output, step.void) if step.void else output)
        self._follow(news)
        return news

    def _fail(self, failed: SchedulerOutput, error: Exception) -> list[EngineOutput]:
        self._num_failed += 1
        lost = [failed]
        while self._steps:
            step = self._steps.popleft()
            lost.append(step.scheduled)
            try:
                step.handle.result()
            except Exception as later:
                logger.debug("step %d failed too: %s", step.scheduled.step_id, later)
        if self._num_failed >= MAX_FAILED_STEPS:
            raise EngineDeadError(f"{self._num_failed} steps failed in a row, the last with {_named(error)}") from error
        request_ids = list(dict.fromkeys(request.request_id for output in lost for request in output.scheduled))
        ended = self._scheduler.abort(request_ids)
        self._follow(ended)
        for output in lost:
            nothing = [RequestStepOutput(request.request_id, []) for request in output.scheduled]
            self._scheduler.update(output, ModelOutput(output.step_id, nothing))
        message = f"the step that computed this request failed: {_named(error)}"
        return [msgspec.structs.replace(output, finish_reason="error", error=message) for output in ended]


class TakingPart:
    """Steps in which an engine has no rows: nobody waits for what comes of them, but not too many are on their way.

    Args:
        executor: runs them.
        steps_ahead: how many may be on their way when a further one is submitted.
    """

    def __init__(self, executor: Executor, steps_ahead: int) -> None:
        self._executor, self._steps_ahead = executor, steps_ahead
        self._handles: deque[StepHandle] = deque()

    def submit(self, step: SchedulerOutput) -> None:
        """Start a step; EngineDeadError where the workers are gone."""
        handle = self._executor.submit(step)
        handle.sample(None)
        self._handles.append(handle)
        while len(self._handles) > self._steps_ahead:
            self._handles.popleft().result()


def _without(output: ModelOutput, request_ids: set[str]) -> ModelOutput:
    """`output`, but no token for these requests."""
    requests = [
        msgspec.structs.replace(result, token_ids=[], logprobs=None) if result.request_id in request_ids else result
        for result in output.requests
    ]
    return msgspec.structs.replace(output, requests=requests)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
