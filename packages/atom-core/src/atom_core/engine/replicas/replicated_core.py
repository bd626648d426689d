"""`ReplicatedCore`: several engines in processes of their own, for callers without an event loop. Torch-free."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.info import EngineInfo
from atom_core.engine.replicas.engine_control import EngineControl
from atom_core.engine.replicas.replicas import EngineDeath, Replicas
from atom_core.engine.replicas.status import EngineStatus, total_stats
from atom_core.errors import EngineBusyError, EngineStartError
from atom_core.messages import EngineOutput, EngineRequest, NamedAdapter, StepStats, Submission

START_SECONDS = 600.0
# A step that brings nothing ends after this, so that its caller can look at other things.
STEP_SECONDS = 0.5

T = TypeVar("T")


class ReplicatedCore:
    """Does what `LLMEngine` asks of an `EngineCore`. One thread calls it; a thread of its own talks to the processes.

    Engines compute whether anybody calls `step` or not: it only waits for their news.

    Args:
        args: what each engine starts with.
        model_path: the model's folder or file.

    Attributes:
        info: what one of the engines resolved at start.

    Raises:
        EngineStartError: one of them could not start.
    """

    def __init__(self, args: EngineArgs, model_path: Path) -> None:
        self._news: queue.SimpleQueue[list[EngineOutput]] = queue.SimpleQueue()
        self._open: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engines", daemon=True)
        self._thread.start()
        try:
            self.info: EngineInfo = self._run(self._start(args, model_path))
        except BaseException:
            self.close()
            raise

    def add(self, submission: Submission) -> None:
        """Queue all samples of a submission; one that cannot be served finishes with "error".

        Raises:
            EngineDeadError: no engine works.
            InvalidRequestError: it holds what cannot be sent.
        """
        self._call(lambda: self._replicas.send(self._replicas.route(submission)))
        n = submission.sampling_params.n
        self._open.update(sample_id for prompt in submission.prompts for sample_id in prompt.sample_ids(n))

    def why_it_cannot_fit(self, request: EngineRequest) -> str | None:
        """Nothing: the engine that gets a request says it, in the request's news."""
        return None

    def abort(self, request_ids: Sequence[str]) -> None:
        """End samples; their last news come with later steps. Unknown ids are ignored."""
        self._call(lambda: self._replicas.abort(request_ids))

    def step(self) -> list[EngineOutput]:
        """The news that have come, or come soon."""
        news: list[EngineOutput] = []
        try:
            news += self._news.get(timeout=STEP_SECONDS)
            while True:
                news += self._news.get_nowait()
        except queue.Empty:
            pass
        self._open.difference_update(output.request_id for output in news if output.finish_reason is not None)
        return news

    def settle(self) -> list[EngineOutput]:
        """Wait until all samples have ended; whoever calls this has ended them."""
        news: list[EngineOutput] = []
        while self._open:
            news += self.step()
        return news

    def has_unfinished(self) -> bool:
        """Whether `step` has anything left to tell."""
        return bool(self._open)

    def stats(self) -> StepStats:
        """Counts of all engines after their last steps."""
        num_blocks = self.info.num_blocks
        idle = StepStats(0, 0, num_blocks, num_blocks, 0, 0, 0)
        return total_stats([status.stats or idle for status in self.engines])

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """How each engine does, by its rank."""
        return self._call(lambda: self._replicas.engines)

    def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        self._run(self._control.reset_prefix_cache())

    def load_adapter(self, adapter: NamedAdapter) -> None:
        """All engines read an adapter; AdapterError where one of them cannot serve it."""
        self._run(self._control.load_adapter(adapter))

    def unload_adapter(self, adapter_id: int) -> None:
        """All engines let go of an adapter, once the last of its requests has ended there."""
        self._run(self._control.unload_adapter(adapter_id))

    def sleep(self, level: int) -> None:
        """All engines give their memory back (see `EngineCore.sleep`); EngineBusyError where something is open."""

        async def end_open() -> None:
            if self._open:
                raise EngineBusyError("requests are open: end them before the engine sleeps")

        self._run(self._control.sleep(level, end_open=end_open))

    def wake_up(self) -> None:
        """Take requests again."""
        self._run(self._control.wake_up())

    @property
    def is_asleep(self) -> bool:
        """Whether the engines sleep."""
        return self._control.sleep_level != 0

    def profile(self, *, start: bool) -> None:
        """Begin or end a trace in every engine; ProfilerError says what to set where no folder was given."""
        self._run(self._control.profile(start=start))

    def close(self) -> None:
        """End the processes; to be called once."""
        self._run(self._replicas.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, args: EngineArgs, model_path: Path) -> EngineInfo:
        self._replicas = Replicas(
            args,
            on_news=self._news.put,
            on_reply=lambda reply: self._control.take(reply),
            on_death=self._take_death,
            on_start=lambda rank: self._control.engine_started(rank),
        )
        self._control = EngineControl(self._replicas)
        self._replicas.spawn(model_path)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._replicas.wait_until_ready()
        except TimeoutError:
            raise EngineStartError(f"the engines were not ready within {START_SECONDS:g} s") from None
        infos = self._replicas.infos
        return msgspec.structs.replace(infos[0], max_model_len=min(info.max_model_len for info in infos))

    def _take_death(self, death: EngineDeath) -> None:
        self._control.engine_died(death)
        self._news.put(death.last_news())

    def _call(self, work: Callable[[], T]) -> T:
        """What `work` gives in the thread of the event loop."""

        async def done() -> T:
            return work()

        return self._run(done())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
