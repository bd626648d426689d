"""`EngineCore`: the loop. Schedules a step, submits it, and collects the step before it. Torch-free by itself."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from atom_core.config.sections import EngineConfig
from atom_core.engine.errors import EngineDeadError
from atom_core.engine.failure import Failure
from atom_core.engine.info import EngineInfo
from atom_core.executor.factory import make_executor
from atom_core.executor.protocol import Executor, StepHandle
from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    ModelOutput,
    RequestState,
    RequestStepOutput,
    SchedulerOutput,
    StepStats,
)
from atom_core.scheduler import Scheduler
from atom_core.speculation import make_speculation
from atom_core.structured_output.constrained_requests import ConstrainedRequests
from atom_core.tokenization import Tokenizer
from atom_models import open_checkpoint

logger = logging.getLogger(__name__)

# A device that fails this many steps in a row will not recover.
MAX_FAILED_STEPS = 3
IDLE_SECONDS = 0.001


@dataclass
class _Step:
    """A step in flight; what it samples for requests in `void` counts for nothing: their masks were not ready."""

    scheduled: SchedulerOutput
    handle: StepHandle
    void: set[str] = field(default_factory=set)


class EngineCore:
    """Owns the scheduler and the executor; one thread calls it.

    Args:
        config: the engine's configuration.
        executor: runs the steps; None makes one, with a `ModelRunner` for each rank.

    Attributes:
        info: what was resolved at start.
    """

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        self._executor = executor if executor is not None else make_executor(config)
        try:
            runner = self._executor.start()
        except BaseException:
            self._executor.shutdown()
            raise
        # Without memory for states behind prefixes, a model that keeps states finds none.
        has_states = any(group.in_slots for group in runner.groups)
        finds_prefixes = config.cache.enable_prefix_caching and (runner.num_snapshots > 0 or not has_states)
        self._scheduler = Scheduler(
            msgspec.structs.replace(config.scheduler, max_model_len=runner.max_model_len),
            KVCacheConfig(
                num_blocks=runner.num_blocks,
                block_size=config.cache.block_size,
                enable_prefix_caching=finds_prefixes,
                prefix_hash=config.cache.prefix_hash,
                groups=runner.groups,
                num_slots=runner.num_slots,
                num_snapshots=runner.num_snapshots,
                names_cover_next=config.speculation is not None and config.speculation.keeps_by_next,
            ),
            speculation=make_speculation(config.speculation),
        )
        self._steps_ahead = 1 if config.scheduler.async_scheduling else 0
        self._in_flight: deque[_Step] = deque()
        self._news: list[EngineOutput] = []
        self._failed_steps = 0
        self._num_late_captures = self._num_late_compilations = 0
        self._constrained = ConstrainedRequests(
            lambda: Tokenizer.of_model(open_checkpoint(config.model.path), config.model.tokenizer),
            vocab_size=config.model.vocab_size,
            eos_token_ids=config.model.eos_token_ids,
            config=config.structured_output,
        )
        self.info = EngineInfo(
            model=config.model.name,
            model_path=str(config.model.path),
            architecture=config.model.architecture,
            max_model_len=runner.max_model_len,
            vocab_size=config.model.vocab_size,
            dtype=config.model.dtype,
            kv_cache_dtype=config.cache.format.name,
            device=config.device,
            num_blocks=runner.num_blocks,
            block_size=config.cache.block_size,
            num_groups=len(runner.groups),
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            enable_prefix_caching=finds_prefixes,
            eos_token_ids=config.model.eos_token_ids,
            num_threads=config.parallel.num_threads,
            tensor_parallel_size=config.parallel.tensor_parallel_size,
            profiler_dir=config.profiler.directory,
            timings=dict(runner.timings),
            choices=[*config.choices, *runner.choices],
        )
        for line in self.info.choices:
            logger.info("%s", line)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a validated request. One that cannot be served finishes with "error" at one of the next steps.

        One with a grammar waits, beside the queue, until that is compiled.
        """
        if request.sampling_params.is_constrained:
            self._constrained.hold(request)
        else:
            self._admit(request)

    def why_it_cannot_fit(self, request: EngineRequest) -> str | None:
        """The reason why a request could never run here; None if it can."""
        return self._scheduler.why_it_cannot_fit(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their last news come with the next step. Unknown ids are ignored."""
        ended = self._scheduler.abort(list(request_ids))
        self._constrained.follow(ended)
        self._news += ended + self._constrained.abort(request_ids)

    def step(self) -> list[EngineOutput]:
        """Submit the next step, then collect the one before it (or this one, without async scheduling).

        Raises:
            EngineDeadError: the device failed several steps in a row.
        """
        self._admit_constrained()
        self._resume_late()
        scheduled = self._scheduler.schedule()
        if scheduled is None and self._in_flight:
            # What comes next depends on a step in flight, as drafts do: go on before anybody hears of that step, so
            # that the device does not wait meanwhile.
            self._news += self._collect()
            scheduled = self._scheduler.schedule()
        if scheduled is not None:
            step = _Step(scheduled, self._executor.submit(scheduled))
            self._in_flight.append(step)
            self._release_sampler(step)
        if len(self._in_flight) > self._steps_ahead:
            self._news += self._collect()
        elif scheduled is None and not self._news:
            time.sleep(IDLE_SECONDS)  # the scheduler holds requests back for now: do not spin
        return self._take_news()

    def settle(self) -> list[EngineOutput]:
        """Collect the steps in flight and submit no other: blocks that only these steps still hold become free.

        Raises:
            EngineDeadError: the device failed several steps in a row.
        """
        while self._in_flight:
            self._news += self._collect()
        return self._take_news()

    def has_unfinished(self) -> bool:
        """Whether `step` has anything left to do or to tell."""
        return bool(
            self._news or self._in_flight or self._constrained.has_waiting() or self._scheduler.has_unfinished()
        )

    def stats(self) -> StepStats:
        """Counts as of now."""
        return msgspec.structs.replace(
            self._scheduler.stats(),
            num_waiting_for_grammar=self._constrained.num_waiting,
            num_late_captures=self._num_late_captures,
            num_late_compilations=self._num_late_compilations,
        )

    def states(self) -> list[RequestState]:
        """Where each request stands."""
        return self._constrained.states() + self._scheduler.states()

    def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        self._scheduler.forget_prefixes()

    def prepare(self) -> bool:
        """Use idle time for what later steps would wait for (see `Executor.prepare`); False where nothing is left."""
        return self._executor.prepare()

    @property
    def is_preparing(self) -> bool:
        """Whether a capture or a compilation runs, in `prepare` or in a step that cannot do without. For any thread."""
        return self._executor.is_preparing

    @property
    def failure(self) -> Failure | None:
        """What ended the workers; None while they work. For any thread."""
        return self._executor.failure

    def profile(self, *, start: bool) -> None:
        """Begin or end a trace in every worker (see `Executor.profile`)."""
        self._executor.profile(start=start)

    def close(self) -> None:
        """Let steps on their way finish, then let go of the device."""
        self._executor.shutdown()
        self._constrained.close()

    def _admit(self, request: EngineRequest) -> None:
        try:
            reason = self._scheduler.why_it_cannot_fit(request)
            if reason is None:
                self._scheduler.add_request(request)
                return
        except Exception as error:
            logger.exception("request %s was not admitted", request.request_id)
            reason = f"{type(error).__name__}: {error}"
        self._refuse(request, reason)

    def _refuse(self, request: EngineRequest, reason: str, code: str | None = None) -> None:
        news = [EngineOutput(request.request_id, [], finish_reason="error", error=reason, error_code=code)]
        self._constrained.follow(news)
        self._news += news

    def _admit_constrained(self) -> None:
        """Queue the requests whose grammars are ready."""
        if self._constrained.has_waiting():
            for request, refusal in self._constrained.take_ready():
                if refusal is None:
                    self._admit(request)
                else:
                    self._refuse(request, refusal.reason, refusal.code)

    def _resume_late(self) -> None:
        """Let requests go on whose masks have been made beside this loop."""
        for request_id, error in self._constrained.take_made():
            if error is None:
                self._scheduler.resume(request_id)
            else:
                self._end_constrained(request_id, error)

    def _release_sampler(self, step: _Step) -> None:
        """Let a step sample. With a grammar this waits for the tokens of earlier steps, while its forward runs."""
        rows = self._constrained.rows(step.scheduled)
        if not rows:
            step.handle.sample(None)
            return
        while len(self._in_flight) > 1:
            self._news += self._collect()
        if not self._in_flight:
            return  # an earlier step failed, and with it this one
        masks = self._constrained.masks(rows)
        step.handle.sample(masks.ready)
        for request_id in masks.late:
            step.void.add(request_id)
            self._scheduler.suspend(request_id)
        for request_id, token_ids in self._constrained.take_forced(masks.ready).items():
            self._scheduler.force(request_id, token_ids)
        for request_id in self._constrained.slow(masks.ready):
            self._scheduler.hold(request_id)
        for request_id, error in masks.errors.items():
            self._end_constrained(request_id, error)

    def _end_constrained(self, request_id: str, error: str) -> None:
        ended = self._scheduler.abort([request_id])
        self._constrained.follow(ended)
        message = f"the grammar of this request cannot be followed any further: {error}"
        self._news += [
            msgspec.structs.replace(output, finish_reason="error", error=message, error_code="invalid_grammar")
            for output in ended
        ]

    def _take_news(self) -> list[EngineOutput]:
        news, self._news = self._news, []
        return news

    def _collect(self) -> list[EngineOutput]:
        step = self._in_flight[0]
        try:
            output = step.handle.result()
        except EngineDeadError:
            raise  # the workers are gone, and no step can follow
        except Exception as error:
            self._in_flight.popleft()
            logger.exception("step %d failed", step.scheduled.step_id)
            return self._fail(step.scheduled, error)
        # Not before: a wait that Ctrl-C ended is taken up again, and the scheduler hears of every step.
        self._in_flight.popleft()
        self._failed_steps = 0
        self._num_late_captures, self._num_late_compilations = output.num_late_captures, output.num_late_compilations
        news = self._scheduler.update(step.scheduled, _without(output, step.void) if step.void else output)
        self._constrained.follow(news)
        return news

    def _fail(self, failed: SchedulerOutput, error: Exception) -> list[EngineOutput]:
        """End the requests of a failed step, and of those submitted after it, which depend on it."""
        self._failed_steps += 1
        lost = [failed]
        while self._in_flight:
            step = self._in_flight.popleft()
            lost.append(step.scheduled)
            try:
                step.handle.result()
            except Exception as later:
                logger.debug("step %d failed too: %s", step.scheduled.step_id, later)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(
                f"{self._failed_steps} steps failed in a row, the last with {_named(error)}"
            ) from error
        request_ids = list(dict.fromkeys(request.request_id for output in lost for request in output.scheduled))
        ended = self._scheduler.abort(request_ids)
        self._constrained.follow(ended)
        for output in lost:
            nothing = [RequestStepOutput(request.request_id, []) for request in output.scheduled]
            self._scheduler.update(output, ModelOutput(output.step_id, nothing))
        message = f"the step that computed this request failed: {_named(error)}"
        return [msgspec.structs.replace(output, finish_reason="error", error=message) for output in ended]


def _without(output: ModelOutput, request_ids: set[str]) -> ModelOutput:
    """`output`, but no token for these requests."""
    requests = [
        msgspec.structs.replace(result, token_ids=[], logprobs=None) if result.request_id in request_ids else result
        for result in output.requests
    ]
    return msgspec.structs.replace(output, requests=requests)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
