"""`EngineCore`: the loop. Schedules a step, submits it, and collects the step before it. Torch-free by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from atom_core.config.sections import EngineConfig
from atom_core.engine.adapters.in_use import AdaptersInUse
from atom_core.engine.assembly import engine_info, make_lockstep, make_publisher, make_scheduler
from atom_core.engine.deadlines import Deadlines
from atom_core.engine.steps_in_flight import Step, StepsInFlight, TakingPart
from atom_core.engine.warming_up import WarmingUp
from atom_core.errors import AdapterError, EngineBusyError
from atom_core.executor.factory import make_executor
from atom_core.executor.protocol import Executor
from atom_core.failure import Failure
from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    NamedAdapter,
    RequestState,
    SchedulerOutput,
    StepStats,
    Submission,
)
from atom_core.structured_output.constrained_requests import ConstrainedRequests
from atom_core.tokenization import Tokenizer
from atom_models import open_checkpoint

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.001
# A step in which an engine only computes rows of others.
NO_REQUESTS = SchedulerOutput(0, [], [], [])


class EngineCore:
    """Owns the scheduler and the executor; one thread calls it.

    Args:
        config: the engine's configuration.
        executor: runs the steps; None makes one, with a `ModelRunner` for each rank.

    Attributes:
        info: what was resolved at start.
        is_asleep: no request is taken (see `sleep`).
    """

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        self._lockstep = make_lockstep(config)
        self._executor = executor if executor is not None else make_executor(config)
        try:
            runner = self._executor.start()
            self._lockstep.meet()
            self._publisher = make_publisher(config)
        except BaseException:
            self._executor.shutdown()
            raise
        self._scheduler = make_scheduler(config, runner)
        self._adapters = AdaptersInUse(self._executor, 0 if config.lora is None else config.lora.max_loras)
        self._constrained = ConstrainedRequests(
            lambda: Tokenizer.of_model(open_checkpoint(config.model.path), config.model.tokenizer),
            vocab_size=config.model.vocab_size,
            eos_token_ids=config.model.eos_token_ids,
            config=config.structured_output,
        )
        self.is_asleep = False
        self._num_stages = config.scheduler.num_stages
        # A stage has its next step before the result of its last one is known.
        self._steps_ahead = self._num_stages if config.scheduler.async_scheduling else 0
        self._in_flight = StepsInFlight(self._executor, self._scheduler, self._constrained.follow)
        self._taking_part = TakingPart(self._executor, self._steps_ahead)
        self._deadlines = Deadlines(config.scheduler.max_request_seconds)
        self._news: list[EngineOutput] = []
        self._warming_up = WarmingUp(self._executor, config.compile.warmup)
        self.info = engine_info(config, runner)
        self.info.timings.update(self._warming_up.begin())
        for line in self.info.choices:
            logger.info("%s", line)

    def add(self, submission: Submission) -> None:
        """Queue all samples of a submission."""
        for sample in submission.samples():
            self.add_request(sample)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a validated request. One that cannot be served finishes with "error" at one of the next steps.

        A request with a grammar waits beside the queue until the grammar is compiled.
        """
        if self.is_asleep:
            self._refuse(request, "the engine sleeps", "sleeping")
            return
        if not self._adapters.takes(request.adapter_id):
            self._refuse(request, "its adapter was unloaded", "model_not_found")
            return
        self._adapters.add(request)
        self._deadlines.add(request)
        if request.sampling_params.is_constrained:
            self._constrained.hold(request)
        else:
            self._admit(request)

    def why_it_cannot_fit(self, request: EngineRequest) -> str | None:
        """The reason why a request could never run here; None if it can."""
        return self._scheduler.why_it_cannot_fit(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their last news come with the next step. Unknown ids are ignored."""
        self._news += self._end(request_ids)

    def step(self) -> list[EngineOutput]:
        """Submit the next step, then collect the one before it (or this one, without async scheduling).

        Raises:
            EngineDeadError: the device failed several steps in a row.
        """
        self._end_expired()
        self._admit_constrained()
        self._resume_late()
        scheduled = self._scheduler.schedule()
        if scheduled is None and self._in_flight:
            # The next step depends on the one in flight, for example on its drafts. It is submitted before anybody
            # is told the news, so that the device does not wait meanwhile.
            self._news += self._in_flight.collect()
            scheduled = self._scheduler.schedule()
        if scheduled is not None:
            is_idle = not self._in_flight
            if self._lockstep.is_shared:
                scheduled = self._agreed(scheduled)
            step = self._in_flight.submit(scheduled)
            self._release_sampler(step)
            if is_idle:
                # Nothing else computes: what this thread does next would keep the worker's from running Python.
                step.handle.wait_for_launch()
        is_called = self._lockstep.is_called and (scheduled is None or not scheduled.scheduled)
        if is_called:
            self.take_part()
        if len(self._in_flight) > self._steps_ahead:
            self._news += self._in_flight.collect()
        elif scheduled is None and not self._news and not is_called:
            time.sleep(IDLE_SECONDS)  # the scheduler holds requests back for now: do not spin
        self._warming_up.after_step()
        return self._take_news()

    def take_part(self) -> None:
        """Where other engines wait for this one's experts, take their step without rows of its own.

        Raises:
            EngineDeadError: another engine is gone.
        """
        if self._lockstep.is_called:
            self._taking_part.submit(self._agreed(NO_REQUESTS))

    def on_call(self, called: Callable[[], None]) -> None:
        """Have a thread call this whenever another engine may wait for `take_part`, or `step`."""
        self._lockstep.on_call(called)

    def settle(self) -> list[EngineOutput]:
        """Collect the steps in flight and submit no other: blocks that only these steps still hold become free.

        Raises:
            EngineDeadError: the device failed several steps in a row.
        """
        while self._in_flight:
            self._news += self._in_flight.collect()
        return self._take_news()

    def has_unfinished(self) -> bool:
        """Whether `step` has anything left to do or to tell."""
        is_awaited = self._lockstep.is_called or (self._scheduler.awaits_peers and not self.is_asleep)
        return self.has_requests() or is_awaited

    def has_requests(self) -> bool:
        """Whether requests are open, or steps on their way."""
        return bool(
            self._news or self._in_flight or self._constrained.has_waiting() or self._scheduler.has_unfinished()
        )

    def stats(self) -> StepStats:
        """Counts as of now."""
        return msgspec.structs.replace(
            self._scheduler.stats(),
            num_waiting_for_grammar=self._constrained.num_waiting,
            num_late_captures=self._in_flight.num_late_captures,
            num_late_compilations=self._in_flight.num_late_compilations,
            num_expert_moves=self._in_flight.num_expert_moves,
        )

    def states(self) -> list[RequestState]:
        """Where each request stands."""
        return self._constrained.states() + self._scheduler.states()

    def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        self._scheduler.forget_prefixes()
        self._tell_events()

    def load_adapter(self, adapter: NamedAdapter) -> None:
        """Have the workers read an adapter; requests with its number may come once this returns.

        Raises:
            AdapterError: it cannot be served, or not now; nothing has changed then.
        """
        if self.is_asleep:
            raise AdapterError("the engine sleeps: wake it up before an adapter is loaded")
        self._adapters.load(adapter)

    def unload_adapter(self, adapter_id: int) -> None:
        """Refuse further requests of an adapter, and let go of it once the last one that is open has ended."""
        self._adapters.unload(adapter_id)

    def sleep(self, level: int) -> None:
        """Forget what is cached, and give back the memory of the cache and of the weights.

        Args:
            level: at 1 the host keeps the weights, at 2 they are read anew when the engine is woken up.

        Raises:
            EngineBusyError: something is open, the engine sleeps already, or others need its experts.
        """
        if self.is_asleep:
            raise EngineBusyError("the engine sleeps already: wake it up first")
        if self.info.enable_dp_attention:
            raise EngineBusyError("engines with enable_dp_attention need each other's experts, and do not sleep")
        if self.has_requests():
            raise EngineBusyError("requests are open: end them before the engine sleeps")
        self.reset_prefix_cache()
        self.is_asleep = True
        self._executor.sleep(level)

    def wake_up(self) -> None:
        """Take requests again; one that is awake goes on."""
        if self.is_asleep:
            self._executor.wake_up()
            self.is_asleep = False
            self._warming_up.begin()

    def prepare(self) -> bool:
        """Use idle time for what later steps would wait for (see `Executor.prepare`); False where nothing is left."""
        return not self.is_asleep and self._warming_up.while_idle()

    @property
    def is_warming_up(self) -> bool:
        """Whether steps and idle time are shared with a warm-up in the background."""
        return self._warming_up.is_under_way

    @property
    def is_preparing(self) -> bool:
        """Whether a capture or a compilation runs, in `prepare` or in a step that needs it. For any thread."""
        return self._executor.is_preparing

    @property
    def failure(self) -> Failure | None:
        """What ended the workers, or another engine that this one needs; None while they work. For any thread."""
        return self._executor.failure or self._lockstep.failure

    def failure_behind(self, error: Exception) -> Failure:
        """What `error` is told as: another engine's end explains why an exchange with it broke."""
        return self._lockstep.lost() or Failure.of(error)

    @property
    def stopped_ranks(self) -> tuple[int, ...]:
        """Workers that a signal has stopped. For any thread."""
        return self._executor.stopped_ranks

    def profile(self, *, start: bool) -> None:
        """Begin or end a trace in every worker (see `Executor.profile`)."""
        self._executor.profile(start=start)

    def close(self) -> None:
        """Let steps on their way finish, then let go of the device."""
        self._executor.shutdown()
        self._lockstep.close()
        self._constrained.close()
        if self._publisher is not None:
            self._publisher.close()

    def _agreed(self, scheduled: SchedulerOutput) -> SchedulerOutput:
        """A step that other engines take too, where they share their experts with this one."""
        if not scheduled.scheduled and scheduled is not NO_REQUESTS:
            return scheduled  # it moves blocks, and computes nothing
        return msgspec.structs.replace(scheduled, rows_of_engines=self._lockstep.agree(scheduled.num_tokens))

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

    def _release_sampler(self, step: Step) -> None:
        """Let a step sample. If rows have grammars, wait for the tokens of earlier steps first; its forward runs.

        Where there are stages, all tokens of a request have arrived before it is scheduled.
        """
        rows = self._constrained.rows(step.scheduled)
        if not rows:
            step.handle.sample(None)
            return
        while len(self._in_flight) > 1 and self._num_stages == 1:
            self._news += self._in_flight.collect()
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

    def _end(self, request_ids: Sequence[str]) -> list[EngineOutput]:
        """End requests wherever they are; their last news."""
        ended = self._scheduler.abort(list(request_ids))
        self._constrained.follow(ended)
        return ended + self._constrained.abort(request_ids)

    def _end_expired(self) -> None:
        if expired := self._deadlines.take_expired():
            error = f"it was not finished within {self._deadlines.seconds:g} s (max_request_seconds)"
            self._news += [_failed(output, error, "request_timeout") for output in self._end(expired)]

    def _end_constrained(self, request_id: str, error: str) -> None:
        ended = self._scheduler.abort([request_id])
        self._constrained.follow(ended)
        message = f"the grammar of this request cannot be followed any further: {error}"
        self._news += [_failed(output, message, "invalid_grammar") for output in ended]

    def _tell_events(self) -> None:
        if self._publisher is not None:
            self._publisher.publish(self._scheduler.take_cache_events())

    def _take_news(self) -> list[EngineOutput]:
        self._tell_events()
        news, self._news = self._news, []
        self._adapters.take(news)
        return news


def _failed(output: EngineOutput, error: str, code: str) -> EngineOutput:
    """The last news of a request that was ended because of `error`."""
    return msgspec.structs.replace(output, finish_reason="error", error=error, error_code=code)
