"""`EngineLink`: the sockets to the engine's process, and the process. Torch-free."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from atom_core.config.engine_args import EngineArgs
from atom_core.engine.process.engine_process import EngineProcess
from atom_core.engine.process.meeting_folder import MeetingFolder
from atom_core.engine.process.wire import ENCODER, FROM_ENGINE, FromEngine, ToEngine, news_address, request_address
from atom_core.errors import InvalidRequestError
from atom_core.failure import Failure, write_trace

# When the process has ended, a last message with the cause may still be on its way.
LAST_WORDS_SECONDS = 0.2
# News are taken for so long before others on the event loop get their turn.
RECEIVE_SECONDS = 0.005


class EngineLink:
    """Sends to the engine's process, hands on what it says, and notices its end. Made inside the event loop.

    Args:
        args: the arguments that the engine starts with.
        rank, meeting: as `EngineProcess` takes them.
        on_message: called with each message of the engine.
        on_failure: called with what ended the engine: its process ended, or its news cannot be followed.

    Attributes:
        process: the engine's process.
    """

    def __init__(
        self,
        args: EngineArgs,
        rank: int,
        meeting: MeetingFolder | None = None,
        *,
        on_message: Callable[[FromEngine], None],
        on_failure: Callable[[Failure], None],
    ) -> None:
        self.process = EngineProcess(args, rank, meeting)
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_failure = on_failure
        self._again: asyncio.Handle | None = None
        self._is_closed = False
        self._context = zmq.Context()
        self._requests = self._socket(zmq.PUSH)
        # The engine binds this one: what is sent before it does waits here, and sending never blocks.
        self._requests.connect(request_address(self.process.folder))
        self._news = self._socket(zmq.PULL)
        self._news.bind(news_address(self.process.folder))

    def open(self, model_path: Path) -> None:
        """Start the process; it says `Ready` or `Failed` when it knows."""
        self._loop.add_reader(self._news.fileno(), self._receive)
        self.process.spawn(model_path, self._exited)

    def send(self, message: ToEngine) -> None:
        """Send at once: without a limit on its queue the socket never waits."""
        self.send_encoded(self.encode(message))

    def encode(self, message: ToEngine) -> bytes:
        """A message as it is sent.

        Raises:
            InvalidRequestError: it holds what cannot be sent, such as an integer of more than 64 bits in a schema.
        """
        try:
            return ENCODER.encode(message)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"the request cannot be sent to the engine: {error}") from error

    def send_encoded(self, data: bytes) -> None:
        """Send a message that `encode` gave."""
        self._requests.send(data, zmq.NOBLOCK)

    async def close(self, grace: float) -> None:
        """Give the process `grace` seconds to end by itself, then end it; remove the sockets' files."""
        self._is_closed = True
        await asyncio.to_thread(self.process.stop, grace)
        self._loop.remove_reader(self._news.fileno())
        if self._again is not None:
            self._again.cancel()
        self._context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        return socket

    def _receive(self) -> None:
        """Take what has come, for a while: the descriptor tells only that something has.

        A message that cannot be handled may have held news of any request: nothing after it can be trusted.
        """
        deadline = time.monotonic() + RECEIVE_SECONDS
        while time.monotonic() < deadline:
            try:
                data = self._news.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._on_message(FROM_ENGINE.decode(data))
            except Exception as error:
                self._loop.remove_reader(self._news.fileno())
                cause = f"a message of the engine could not be handled: {type(error).__name__}: {error}"
                self._on_failure(Failure("engine", cause, write_trace(error)))
                return
        self._again = self._loop.call_soon(self._receive)

    def _exited(self) -> None:
        """Called from the thread that watches the process."""
        with contextlib.suppress(RuntimeError):  # the event loop may have ended before us
            self._loop.call_soon_threadsafe(self._loop.call_later, LAST_WORDS_SECONDS, self._tell_of_exit)

    def _tell_of_exit(self) -> None:
        if not self._is_closed:
            self._on_failure(self.process.describe_exit())
