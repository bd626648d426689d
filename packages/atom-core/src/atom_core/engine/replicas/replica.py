"""`Replica`: one of the engines behind a front, through its deaths. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.info import EngineInfo
from atom_core.engine.process.meeting_folder import MeetingFolder
from atom_core.engine.process.supervisor import EngineSupervisor, engine_name
from atom_core.engine.process.wire import FromEngine, News, Pulse
from atom_core.engine.replicas.status import EngineState, EngineStatus
from atom_core.errors import EngineStartError
from atom_core.messages import StepStats


class Replica:
    """An engine's process, what it resolved, and what it last said of itself. Made inside the event loop.

    Args:
        args: what all engines start with.
        rank: this one's number.
        meeting: as `EngineProcess` takes it.
        on_message: called with the rank and each message.
        on_death: called with the rank and the cause of each death.

    Attributes:
        name: what people call it.
        info: what it resolved at its last start; None before that.
        num_restarts: how often its process was started anew.
        has_spare_life: whether it is started anew, by itself, when it dies; where others serve meanwhile.
    """

    def __init__(
        self,
        args: EngineArgs,
        rank: int,
        meeting: MeetingFolder | None = None,
        *,
        on_message: Callable[[int, FromEngine], None],
        on_death: Callable[[int, str], None],
    ) -> None:
        self.rank, self.name = rank, engine_name(rank, args.data_parallel_size)
        self.info: EngineInfo | None = None
        self.num_restarts = 0
        self.has_spare_life = args.data_parallel_size > 1 and meeting is None
        self._on_message, self._on_death = on_message, on_death
        self._stats: StepStats | None = None
        self._cause: str | None = None
        self._is_starting = False
        self.process = EngineSupervisor(args, rank, meeting, on_message=self._take, on_death=self._died)

    def spawn(self, model_path: Path) -> None:
        """Start the process; `wait_until_ready` must follow."""
        self._is_starting = True
        self.process.spawn(model_path)

    async def wait_until_ready(self) -> EngineInfo:
        """What the process resolved.

        Raises:
            EngineStartError: it could not start.
        """
        return await self._started(self.process.wait_until_ready())

    async def restart(self) -> EngineInfo:
        """Start the process anew after its death.

        Raises:
            EngineStartError: it could not start.
        """
        self._is_starting = True
        info = await self._started(self.process.restart())
        self.num_restarts += 1
        return info

    @property
    def serves(self) -> bool:
        """Whether requests can be sent to it."""
        return self.info is not None and not self._is_starting and self.process.works

    @property
    def status(self) -> EngineStatus:
        """How the engine does now."""
        return EngineStatus(
            self.rank, self._state, self.process.pid, self.num_restarts, self._cause, self.info, self._stats
        )

    @property
    def stats(self) -> StepStats | None:
        """Counts after its last step."""
        return self._stats

    @property
    def _state(self) -> EngineState:
        if self._is_starting:
            return "starting" if self.info is None else "restarting"
        return "serving" if self.serves else "dead"

    async def _started(self, starting: Coroutine[None, None, EngineInfo]) -> EngineInfo:
        try:
            self.info = info = await starting
        except EngineStartError as error:
            self._cause = str(error)
            raise
        finally:
            self._is_starting = False
        return info

    def _take(self, message: FromEngine) -> None:
        match message:
            case News(_, stats) | Pulse(_, stats):
                self._stats = stats
        self._on_message(self.rank, message)

    def _died(self, cause: str) -> None:
        self._cause, self._stats = cause, None
        self._on_death(self.rank, cause)
