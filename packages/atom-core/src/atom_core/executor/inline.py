"""`InlineExecutor`: one worker in this process, in a thread of its own."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from atom_core.messages import ModelOutput, SchedulerOutput
from atom_core.worker.runner import Masks, PendingOutput, Runner, RunnerInfo


class InlineExecutor:
    """Runs steps on `runner` in one thread, so that scheduling goes on while they run.

    Everything of the runner happens in that thread: its OpenMP threads belong to it.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")
        self._launches = False

    def start(self) -> RunnerInfo:
        info = self._thread.submit(self._runner.load).result()
        self._launches = info.launches
        return info

    def submit(self, step: SchedulerOutput) -> InlineStepHandle:
        return InlineStepHandle(self._runner, self._thread, step, launches=self._launches)

    def sleep(self, level: int) -> None:
        self._thread.submit(self._runner.sleep, level).result()

    def wake_up(self) -> None:
        self._thread.submit(self._runner.wake_up).result()

    def prepare(self) -> bool:
        return self._thread.submit(self._runner.prepare).result()

    @property
    def is_preparing(self) -> bool:
        return self._runner.is_preparing

    @property
    def failure(self) -> None:
        return None

    @property
    def stopped_ranks(self) -> tuple[int, ...]:
        return ()

    def profile(self, *, start: bool) -> None:
        self._thread.submit(self._runner.profile, start=start).result()

    def shutdown(self) -> None:
        with suppress(RuntimeError):  # it was shut down before
            self._thread.submit(self._runner.close).result()
        self._thread.shutdown(wait=True)


class InlineStepHandle:
    """A step in the worker's queue; see `StepHandle`."""

    def __init__(self, runner: Runner, thread: ThreadPoolExecutor, step: SchedulerOutput, *, launches: bool) -> None:
        self._runner = runner
        self._thread, self._launches = thread, launches
        self._forward: Future[None] = thread.submit(runner.forward, step)
        self._sample: Future[PendingOutput] | None = None

    def sample(self, masks: Masks | None = None) -> None:
        self._sample = self._thread.submit(self._run_sampler, masks)

    def wait_for_launch(self) -> None:
        # If the forward raises, `result` raises that later.
        if self._launches:
            wait([self._forward])

    def result(self) -> ModelOutput:
        if self._sample is None:
            raise RuntimeError("result() before sample(): the sampler was never released")
        return self._sample.result()()

    def _run_sampler(self, masks: Masks | None) -> PendingOutput:
        self._forward.result()  # in the same thread, so it is done; raises what the forward raised
        return self._runner.sample(masks)
