"""`Replicas`: the engines behind one front: routes what is submitted to them, and outlives their deaths. Torch-free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.info import EngineInfo
from atom_core.engine.process.meeting_folder import MeetingFolder
from atom_core.engine.process.wire import AbortRequests, AddRequests, FromEngine, News, Reply, ToEngine
from atom_core.engine.replicas.open_samples import OpenSamples, output_cost
from atom_core.engine.replicas.replica import Replica
from atom_core.engine.replicas.router import MOST_NAMED_BLOCKS, Route, Router
from atom_core.engine.replicas.status import EngineStatus
from atom_core.errors import EngineDeadError, EngineStartError
from atom_core.failure import Failure
from atom_core.kv_cache.config import PrefixHash
from atom_core.messages import EngineOutput, Submission

logger = logging.getLogger(__name__)

RESTART_SECONDS = 600.0
# Engines that die together may each tell a cause of their own for so long.
OWN_CAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class EngineDeath:
    """An engine has died.

    Attributes:
        rank: its number.
        name: what people call it.
        cause: one line.
        lost_sample_ids: the samples that it had.
    """

    rank: int
    name: str
    cause: str
    lost_sample_ids: Sequence[str]

    def last_news(self) -> list[EngineOutput]:
        """The end of each sample that it had."""
        error = f"{self.name} died: {self.cause}"
        return [
            EngineOutput(sample_id, [], finish_reason="error", error=error, error_code="engine_dead")
            for sample_id in self.lost_sample_ids
        ]


@dataclass(frozen=True)
class Dispatch:
    """A submission that is ready to be sent: its prompts' routes, and what each engine gets of it, as it is sent."""

    submission: Submission
    routes: Sequence[Route]
    parts: Sequence[tuple[int, bytes]]


class Replicas:
    """Owns the engines' processes, and which of them has which sample. Made inside the event loop.

    One that dies loses its samples; the others go on, and where there are others it is started anew, once. With a
    single engine all of this is what that engine does. Engines that share their experts die with the first of them.

    Args:
        args: what each engine starts with.
        on_news: called with the news of samples.
        on_reply: called with each answer to what `ask` sent.
        on_death: called once for each engine that dies after it was ready.
        on_start: called with the rank of an engine that was started anew, before anything is sent to it.
    """

    def __init__(
        self,
        args: EngineArgs,
        *,
        on_news: Callable[[list[EngineOutput]], None],
        on_reply: Callable[[Reply], None],
        on_death: Callable[[EngineDeath], None],
        on_start: Callable[[int], None],
    ) -> None:
        self._on_news, self._on_reply, self._on_death, self._on_start = on_news, on_reply, on_death, on_start
        several = args.data_parallel_size > 1
        prefix_hash: PrefixHash = "sha256" if args.prefix_hash == "sha256" else "xxhash64"
        self._router = Router(args.block_size, prefix_hash, finds_prefixes=several and args.enable_prefix_caching)
        self._meeting = MeetingFolder() if args.enable_dp_attention and several else None
        self._replicas = [
            Replica(args, rank, self._meeting, on_message=self._take, on_death=self._died)
            for rank in range(args.data_parallel_size)
        ]
        self._samples = OpenSamples(len(self._replicas))
        self._restarts: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def spawn(self, model_path: Path) -> None:
        """Start the processes; `wait_until_ready` must follow."""
        for replica in self._replicas:
            replica.spawn(model_path)

    async def wait_until_ready(self) -> None:
        """Return when all of them work.

        Raises:
            EngineStartError: one of them could not start.
        """
        starting = [
            asyncio.ensure_future(self._join(replica, replica.wait_until_ready())) for replica in self._replicas
        ]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()

    async def restart(self) -> None:
        """Start those anew that have died for good.

        Raises:
            EngineStartError: one of them could not start.
        """
        dead = [replica for replica in self._replicas if replica.status.state == "dead"]
        for replica in dead:
            replica.has_spare_life = len(self._replicas) > 1 and self._meeting is None
        if self._meeting is not None:
            self._meeting.renew()
        await asyncio.gather(*(self._start_anew(replica) for replica in dead))

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """How each does, by rank."""
        return tuple(replica.status for replica in self._replicas)

    @property
    def infos(self) -> list[EngineInfo]:
        """What those that serve resolved."""
        return [replica.info for replica in self._serving if replica.info is not None]

    @property
    def folder(self) -> str:
        """Private folder with the sockets to the first engine's process."""
        return self._replicas[0].process.folder

    def check_health(self) -> None:
        """Raise EngineDeadError unless one of them lives and makes progress."""
        causes = []
        for replica in self._replicas:
            try:
                replica.process.check_health()
            except EngineDeadError as error:
                causes.append((replica, error))
        if len(causes) == 1 == len(self._replicas):
            raise causes[0][1]
        if len(causes) == len(self._replicas):
            lines = "; ".join(f"{replica.name}: {error}" for replica, error in causes)
            raise EngineDeadError(f"none of {len(causes)} engines works: {lines}")

    @property
    def is_recovering(self) -> bool:
        """Whether one of them is being started anew."""
        return bool(self._restarts)

    @property
    def serving(self) -> list[int]:
        """The ranks of those that work."""
        return [replica.rank for replica in self._serving]

    def route(self, submission: Submission) -> Dispatch:
        """Choose an engine for each prompt, whose samples stay together; `send` is to follow at once.

        Raises:
            EngineDeadError: no engine works.
            InvalidRequestError: it holds what cannot be sent.
        """
        loads = dict(self._samples.loads)
        most_blocks = MOST_NAMED_BLOCKS // len(submission.prompts)
        routes = []
        for prompt in submission.prompts:
            try:
                about = {"salt": submission.prefix_salt, "images": prompt.images}
                route = self._router.route(prompt.token_ids, loads, most_blocks=most_blocks, **about)
            except LookupError:
                raise EngineDeadError("no engine works") from None
            loads[route.rank] += route.num_to_compute + output_cost(prompt, submission)
            routes.append(route)
        parts = []
        for rank in dict.fromkeys(route.rank for route in routes):
            own = [prompt for prompt, route in zip(submission.prompts, routes, strict=True) if route.rank == rank]
            part = submission if len(own) == len(routes) else msgspec.structs.replace(submission, prompts=own)
            parts.append((rank, self._replicas[rank].process.encode(AddRequests(part))))
        return Dispatch(submission, routes, parts)

    def send(self, dispatch: Dispatch) -> None:
        """Send a submission to its engines."""
        self._samples.add(dispatch.submission, dispatch.routes)
        for rank, data in dispatch.parts:
            self._replicas[rank].process.send_encoded(data)

    def abort(self, sample_ids: Sequence[str]) -> None:
        """End samples, wherever they are; those that have ended are ignored."""
        for rank, own in self._samples.by_engine(sample_ids).items():
            if self._replicas[rank].serves:
                self._replicas[rank].process.send(AbortRequests(own))

    def ask(self, rank: int, message: ToEngine) -> None:
        """Send a message about an engine as a whole."""
        self._replicas[rank].process.send(message)

    def forget_prefixes(self) -> None:
        """The engines were told to forget what they had cached."""
        self._router.forget_prefixes()

    async def stop(self) -> None:
        """End the processes, at once where they do not work, and remove their files."""
        self._is_stopping = True
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(replica.process.stop() for replica in self._replicas))
        if self._meeting is not None:
            self._meeting.remove()

    @property
    def _serving(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.serves]

    def _take(self, rank: int, message: FromEngine) -> None:
        match message:
            case News(outputs):
                self._samples.take(outputs)
                self._on_news(outputs)
            case Reply():
                self._on_reply(message)

    def _died(self, rank: int, cause: str) -> None:
        replica = self._replicas[rank]
        self._router.leave(rank)
        lost = self._samples.lose(rank)
        if replica.has_spare_life and not self._is_stopping:
            replica.has_spare_life = False
            logger.warning("%s is started anew, once; %d others serve", replica.name, len(self._serving))
            task = asyncio.get_running_loop().create_task(self._revive(replica))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)
        elif len(self._replicas) > 1:
            logger.error("%s stays down; %d others serve", replica.name, len(self._serving))
        self._on_death(EngineDeath(rank, replica.name, cause, lost))
        if self._meeting is not None:
            asyncio.get_running_loop().call_later(OWN_CAUSE_SECONDS, self._end_with, replica)

    def _end_with(self, dead: Replica) -> None:
        """End the engines that need the experts of one that died."""
        for replica in self._serving:
            replica.process.fail(Failure("engine", f"{dead.name} died, and had experts that this one needs"))

    async def _revive(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(RESTART_SECONDS):
                await self._start_anew(replica)
        except (EngineStartError, TimeoutError) as error:
            logger.error("%s could not be started anew, and stays down: %s", replica.name, error)
        else:
            logger.info("%s works again", replica.name)

    async def _start_anew(self, replica: Replica) -> None:
        await self._join(replica, replica.restart())
        self._on_start(replica.rank)

    async def _join(self, replica: Replica, starting: Coroutine[None, None, EngineInfo]) -> None:
        """Route to an engine once it works. Where it is one of several, an error of its own has its name."""
        try:
            info = await starting
            num_kept = info.num_blocks + info.num_offload_blocks
            self._router.join(replica.rank, num_kept if info.enable_prefix_caching else 0)
        except EngineStartError as error:
            failure = error.failure
            if len(self._replicas) == 1 or failure.kind in ("settings", "model"):
                raise
            raise EngineStartError(Failure(failure.kind, f"{replica.name}: {failure.cause}", failure.trace)) from None
