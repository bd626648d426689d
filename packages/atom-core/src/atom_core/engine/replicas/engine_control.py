"""`EngineControl`: what is asked of the engine's process as a whole, beside requests. Torch-free."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial

from atom_core.engine.process.wire import (
    ListRequests,
    LoadAdapter,
    Pause,
    Profile,
    Reply,
    ResetPrefixCache,
    Sleep,
    ToEngine,
    UnloadAdapter,
    WakeUp,
)
from atom_core.engine.replicas.replicas import EngineDeath, Replicas
from atom_core.errors import AdapterError, EngineAsleepError, EngineBusyError, EngineDeadError, ProfilerError
from atom_core.messages import NamedAdapter, RequestState


class EngineControl:
    """Calls that wait for a reply, which comes between two steps. Belongs to the event loop.

    With several engines all that work are asked, and those that die before they reply are left out. All calls raise
    EngineDeadError where no engine is left.

    Args:
        replicas: the engines.

    Attributes:
        is_paused: no step is taken (see `pause`).
        sleep_level: at which the engine sleeps, or is about to; 0 while it is awake.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.is_paused = self._is_to_pause = False
        self.sleep_level = 0
        self._replicas = replicas
        # Each open call by its id: the rank of the engine that was asked, and the reply that will come.
        self._open: dict[int, tuple[int, asyncio.Future[Reply]]] = {}
        self._ids = itertools.count()
        self._adapters: dict[int, NamedAdapter] = {}

    async def request_states(self) -> list[RequestState]:
        """Where each sample stands in the engine."""
        return [state for reply in await self._ask(ListRequests) for state in reply.requests]

    async def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        self._replicas.forget_prefixes()
        await self._ask(ResetPrefixCache)

    async def pause(self) -> None:
        """Let the steps that run end, and take no others until `resume`. Requests keep their places, new ones wait."""
        self._is_to_pause = True  # before an answer: an engine may be started anew meanwhile
        try:
            await self._ask(partial(Pause, is_paused=True))
        except BaseException:
            self._is_to_pause = self.is_paused
            raise
        self.is_paused = True

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._is_to_pause = False
        await self._ask(partial(Pause, is_paused=False))
        self.is_paused = False

    async def sleep(self, level: int, *, end_open: Callable[[], Awaitable[None]]) -> None:
        """Take no request any more, wait for `end_open`, and give memory back (see `EngineCore.sleep`).

        Raises:
            EngineBusyError: the engine sleeps already, or something was open all the same.
        """
        if self.sleep_level:
            raise EngineBusyError("the engine sleeps already: wake it up first")
        self.sleep_level = level
        try:
            await end_open()
            self._replicas.forget_prefixes()
            for reply in await self._ask(partial(Sleep, level=level)):
                if reply.error is not None:
                    raise EngineBusyError(reply.error)
        except BaseException:
            self.sleep_level = 0
            raise

    async def wake_up(self) -> None:
        """Go on after `sleep`; requests are taken once it returns."""
        await self._ask(WakeUp)
        self.sleep_level = 0

    async def load_adapter(self, adapter: NamedAdapter) -> None:
        """Have every engine read an adapter, those too that are started anew later.

        Raises:
            AdapterError: one of them cannot serve it; then none has it.
        """
        errors = [
            reply.error for reply in await self._ask(partial(LoadAdapter, adapter=adapter)) if reply.error is not None
        ]
        if errors:
            await self.unload_adapter(adapter.id)
            raise AdapterError(errors[0])
        self._adapters[adapter.id] = adapter

    async def unload_adapter(self, adapter_id: int) -> None:
        """Have every engine let go of an adapter, once the last of its requests has ended there."""
        self._adapters.pop(adapter_id, None)
        await self._ask(partial(UnloadAdapter, adapter_id=adapter_id))

    def check_awake(self) -> None:
        """Raise EngineAsleepError while the engine sleeps, or is about to."""
        if self.sleep_level:
            raise EngineAsleepError("the engine sleeps, and takes no request before it is woken up")

    async def profile(self, *, start: bool) -> None:
        """Begin or end a trace; ProfilerError says what to set where no folder was given."""
        for reply in await self._ask(partial(Profile, start=start)):
            if reply.error is not None:
                raise ProfilerError(reply.error)

    def take(self, reply: Reply) -> None:
        """A reply came; one that nobody waits for any more is dropped."""
        _, call = self._open.get(reply.call_id, (0, None))
        if call is not None and not call.done():
            call.set_result(reply)

    def engine_started(self, rank: int) -> None:
        """An engine was started anew: it gets the adapters, and pauses and sleeps where the others do."""
        for adapter in self._adapters.values():
            self._replicas.ask(rank, LoadAdapter(next(self._ids), adapter))
        if self._is_to_pause:
            self._replicas.ask(rank, Pause(next(self._ids), is_paused=True))
        if self.sleep_level:
            self._replicas.ask(rank, Sleep(next(self._ids), self.sleep_level))

    def engine_died(self, death: EngineDeath) -> None:
        """No reply of it will come. Where it was the last one, those that are started anew are awake."""
        if not self._replicas.serving:
            self.is_paused = self._is_to_pause = False
            self.sleep_level = 0
        for rank, call in self._open.values():
            if rank == death.rank and not call.done():
                call.set_exception(EngineDeadError(death.cause))

    async def _ask(self, message_of: Callable[[int], ToEngine]) -> list[Reply]:
        """The replies of the engines that give one."""
        self._replicas.check_health()
        asked: dict[int, asyncio.Future[Reply]] = {}
        try:
            for rank in self._replicas.serving:
                call_id = next(self._ids)
                asked[call_id] = asyncio.get_running_loop().create_future()
                self._open[call_id] = rank, asked[call_id]
                self._replicas.ask(rank, message_of(call_id))
            if asked:
                await asyncio.wait(asked.values())
        finally:
            for call_id in asked:
                del self._open[call_id]
        errors = [error for call in asked.values() if (error := call.exception()) is not None]
        if len(errors) == len(asked):
            raise errors[0] if errors else EngineDeadError("no engine works")
        return [call.result() for call in asked.values() if call.exception() is None]
