"""`EngineControl`: what is asked of the engine's process as a whole, beside requests. Torch-free."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial

from atom_core.engine.process.supervisor import EngineSupervisor
from atom_core.engine.process.wire import ListRequests, Pause, Profile, Reply, ResetPrefixCache, ToEngine
from atom_core.errors import EngineDeadError, ProfilerError
from atom_core.messages import RequestState


class EngineControl:
    """Calls that wait for a reply, which comes between two steps. Belongs to the event loop.

    All of them raise EngineDeadError where the engine is dead, or dies before it replies.

    Args:
        process: the engine's process.

    Attributes:
        is_paused: no step is taken (see `pause`).
    """

    def __init__(self, process: EngineSupervisor) -> None:
        self.is_paused = False
        self._process = process
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._ids = itertools.count()

    async def request_states(self) -> list[RequestState]:
        """Where each sample stands in the engine."""
        return (await self._ask(ListRequests)).requests

    async def reset_prefix_cache(self) -> None:
        """No later request finds what was cached so far; what runs goes on."""
        await self._ask(ResetPrefixCache)

    async def pause(self) -> None:
        """Let the steps that run end, and take no others until `resume`. Requests keep their places, new ones wait."""
        await self._ask(partial(Pause, is_paused=True))
        self.is_paused = True

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._ask(partial(Pause, is_paused=False))
        self.is_paused = False

    async def profile(self, *, start: bool) -> None:
        """Begin or end a trace; ProfilerError says what to set where no folder was given."""
        reply = await self._ask(partial(Profile, start=start))
        if reply.error is not None:
            raise ProfilerError(reply.error)

    def take(self, reply: Reply) -> None:
        """A reply came; one that nobody waits for any more is dropped."""
        call = self._open.get(reply.call_id)
        if call is not None and not call.done():
            call.set_result(reply)

    def engine_died(self, cause: str) -> None:
        """No reply will come. An engine that is started anew is not paused."""
        self.is_paused = False
        for call in self._open.values():
            if not call.done():
                call.set_exception(EngineDeadError(cause))

    async def _ask(self, message_of: Callable[[int], ToEngine]) -> Reply:
        self._process.check_health()
        call_id = next(self._ids)
        self._open[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._process.send(message_of(call_id))
            return await self._open[call_id]
        finally:
            del self._open[call_id]
