"""`InlineExecutor`: one worker in this process, in a thread of its own."""

from __future__ import annotations

from functools import partial

from atom_core.executor.worker_thread import Call, WorkerThread
from atom_core.messages import ModelOutput, NamedAdapter, SchedulerOutput
from atom_core.worker.runner import Masks, PendingOutput, Runner, RunnerInfo


class InlineExecutor:
    """Runs steps on `runner` in one thread, so that scheduling goes on while they run.

    Everything of the runner happens in that thread: its OpenMP threads belong to it.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = WorkerThread("worker")
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

    def load_adapter(self, adapter: NamedAdapter) -> None:
        self._thread.submit(self._runner.load_adapter, adapter).result()

    def unload_adapter(self, adapter_id: int) -> None:
        self._thread.submit(self._runner.unload_adapter, adapter_id).result()

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
        self._thread.submit(partial(self._runner.profile, start=start)).result()

    def shutdown(self) -> None:
        if not self._thread.is_closed:
            closing = self._thread.submit(self._runner.close)
            self._thread.close()
            closing.result()


class InlineStepHandle:
    """A step in the worker's queue; see `StepHandle`."""

    def __init__(self, runner: Runner, thread: WorkerThread, step: SchedulerOutput, *, launches: bool) -> None:
        self._runner = runner
        self._thread, self._launches = thread, launches
        self._forward = thread.submit(runner.forward, step)
        self._sample: Call | None = None

    def sample(self, masks: Masks | None = None) -> None:
        self._sample = self._thread.submit(self._run_sampler, masks)

    def wait_for_launch(self) -> None:
        # If the forward raises, `result` raises that later.
        if self._launches:
            self._forward.wait()

    def result(self) -> ModelOutput:
        if self._sample is None:
            raise RuntimeError("result() before sample(): the sampler was never released")
        return self._sample.result()()

    def _run_sampler(self, masks: Masks | None) -> PendingOutput:
        self._forward.result()  # in the same thread, so it is done; raises what the forward raised
        return self._runner.sample(masks)
