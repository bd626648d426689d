"""`EngineSupervisor`: starts the engine's process, judges whether it works, ends it and starts it anew. Torch-free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.info import EngineInfo
from atom_core.engine.process.engine_link import EngineLink
from atom_core.engine.process.meeting_folder import MeetingFolder
from atom_core.engine.process.wire import Failed, FromEngine, Pulse, Ready, Shutdown, ToEngine
from atom_core.errors import EngineDeadError, EngineStartError
from atom_core.failure import Failure

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.25
# How long a process may hang by default: before and after so many steps, and as a multiple of the longest of them.
COLD_SECONDS, WARM_SECONDS = 60.0, 10.0
STEPS_UNTIL_WARM = 100
LONGEST_STEPS = 20.0


class EngineSupervisor:
    """Owns the engine's process and what is known of its life. Made inside the event loop.

    A process that hangs is killed: no step ends for too long (see `step_limit`), or it says nothing for as long.

    Args:
        args: the arguments that the engine starts with.
        rank, meeting: as `EngineProcess` takes them.
        on_message: called with each message of a process that works.
        on_death: called once for each process that dies after it was ready, with the cause.
    """

    def __init__(
        self,
        args: EngineArgs,
        rank: int,
        meeting: MeetingFolder | None = None,
        *,
        on_message: Callable[[FromEngine], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._args, self._rank, self._meeting = args, rank, meeting
        self._on_message = on_message
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._link = self._make_link()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._watching: asyncio.Task[None] | None = None
        self._failure: Failure | None = None
        self._is_stopping = False
        self._seconds_silent = 0.0
        self._seconds_without_step = 0.0
        self._stopped_ranks: tuple[int, ...] = ()
        self._limit = step_limit(args.step_timeout)

    def spawn(self, model_path: Path) -> None:
        """Start the process; `wait_until_ready` must follow."""
        self._model_path = model_path
        self._link.open(model_path)

    async def wait_until_ready(self) -> EngineInfo:
        """What the process resolved.

        Raises:
            EngineStartError: it could not start.
        """
        info = await self._ready
        self._failure = None
        self._seconds_silent = self._seconds_without_step = 0.0
        self._limit = step_limit(self._args.step_timeout)
        self._watching = self._loop.create_task(self._watch())
        return info

    async def restart(self) -> EngineInfo:
        """Start the process anew after its death.

        Raises:
            EngineStartError: it could not start.
        """
        await self._link.close(0.0)
        self._link = self._make_link()
        self._ready = self._loop.create_future()
        self.spawn(self._model_path)
        return await self.wait_until_ready()

    def check_health(self) -> None:
        """Raise EngineDeadError unless the process lives and makes progress."""
        if self._failure is None and not self._link.process.is_alive:
            self.fail(self._link.process.describe_exit())
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if self._is_stopping:
            raise EngineDeadError("the engine is shutting down")

    @property
    def works(self) -> bool:
        """Whether the process can be sent anything."""
        return self._failure is None and not self._is_stopping

    @property
    def pid(self) -> int | None:
        """The id of the process; None before it starts."""
        return self._link.process.pid

    @property
    def folder(self) -> str:
        """Private folder with the sockets to the process."""
        return self._link.process.folder

    def send(self, message: ToEngine) -> None:
        """Send at once; see `EngineLink.send`."""
        self._link.send(message)

    def encode(self, message: ToEngine) -> bytes:
        """A message as it is sent; see `EngineLink.encode`."""
        return self._link.encode(message)

    def send_encoded(self, data: bytes) -> None:
        """Send a message that `encode` gave."""
        self._link.send_encoded(data)

    def fail(self, failure: Failure) -> None:
        """The process cannot start, died, or is to die: end it."""
        if self._is_stopping:
            return
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(failure))
        elif self._failure is None:
            self._failure = failure
            self._link.process.kill()
            logger.error("%s is dead: %s", engine_name(self._rank, self._args.data_parallel_size), failure.line)
            self._on_death(failure.cause)

    async def stop(self) -> None:
        """End the process, at once where it does not work, and remove its files."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        grace = 0.0
        if self._has_started and self._failure is None:
            self._link.send(Shutdown())
            grace = STOP_GRACE_SECONDS
        await self._link.close(grace)

    @property
    def _has_started(self) -> bool:
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    def _make_link(self) -> EngineLink:
        return EngineLink(self._args, self._rank, self._meeting, on_message=self._handle, on_failure=self.fail)

    def _handle(self, message: FromEngine) -> None:
        self._seconds_silent = 0.0
        match message:
            case Ready(info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case Failed(failure):
                self.fail(failure)
            case Pulse(seconds_without_step, _, num_steps, longest_step, stopped_ranks):
                self._seconds_without_step, self._stopped_ranks = seconds_without_step, stopped_ranks
                self._limit = step_limit(self._args.step_timeout, num_steps, longest_step)
                self._on_message(message)
            case _:
                self._on_message(message)

    async def _watch(self) -> None:
        """Notice a process that lives and does nothing.

        Looks are counted, not the clock: while this process was stopped, or busy, the other one could not be heard.
        """
        while self._failure is None:
            await asyncio.sleep(LOOK_SECONDS)
            self._seconds_silent += LOOK_SECONDS
            if self._seconds_without_step > self._limit:
                problem = f"no step has ended for {self._seconds_without_step:.0f} s"
                problem += "".join(f", rank {rank} was stopped by a signal" for rank in self._stopped_ranks)
            elif self._seconds_silent > self._limit:
                problem = f"its process has said nothing for {self._seconds_silent:.0f} s"
            else:
                continue
            self.fail(Failure("engine", f"the engine hangs: {problem} (--step-timeout {self._limit:g})"))


def engine_name(rank: int, num_engines: int) -> str:
    """What people call an engine: its number matters where there are several."""
    return "the engine" if num_engines == 1 else f"engine {rank}"


def step_limit(chosen: float | None, num_steps: int = 0, longest_step: float = 0.0) -> float:
    """Seconds without the end of a step after which a process hangs: what was chosen, or by what its steps take.

    Args:
        chosen: `EngineArgs.step_timeout`.
        num_steps, longest_step: so far, and the seconds of the longest.
    """
    if chosen is not None:
        return chosen
    if num_steps < STEPS_UNTIL_WARM:
        return COLD_SECONDS
    return max(WARM_SECONDS, LONGEST_STEPS * longest_step)
