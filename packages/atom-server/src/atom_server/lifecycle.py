"""The life of a serving process: start, ready, drain on a signal, or an end because the engine died."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import logging
import signal
import socket
import time
from collections.abc import Generator
from typing import Any

import uvicorn

from atom_core import AsyncEngine, EngineArgs, EngineDeadError, EngineStartError
from atom_server.access.tls import tls_context
from atom_server.banner import show_banner
from atom_server.connections.connection import Connection
from atom_server.connections.descriptors import connections_that_fit, watch_descriptors
from atom_server.connections.disconnect import cancel_all
from atom_server.connections.limits import ConnectionLimits
from atom_server.connections.listen import url_of
from atom_server.connections.open_connections import OpenConnections
from atom_server.observe.loop_lag import watch_loop
from atom_server.options import ServerOptions
from atom_server.state import ServerState

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HEALTH_INTERVAL_S = 0.25
# Long enough for open streams to get their error and for probes to see the 503.
_LAST_WORDS_S = 2.0
_GRACE_S = 2


class SignalFreeServer(uvicorn.Server):
    """uvicorn without its signal handlers: a signal drains the server first, and then stops uvicorn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Lifecycle:
    """Watches signals and the engine's health for a running server.

    Attributes:
        death: the error with which the engine died, where that ends the server.
    """

    def __init__(self, state: ServerState, server: uvicorn.Server) -> None:
        self.death: EngineDeadError | EngineStartError | None = None
        self._state = state
        self._server = server
        self._drain: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        """First signal: drain. Second: at once."""
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self.drain())
        else:
            logger.warning("stopping at once")
            self._server.force_exit = True
            self._server.should_exit = True

    async def drain(self) -> None:
        """Take no new work, let running requests finish, abort what is left, then stop the server."""
        state = self._state
        state.draining = True
        if state.active:
            logger.info(
                "draining: %d requests have up to %g s (a second signal stops at once)",
                len(state.active),
                state.options.drain_timeout,
            )
        if not await self._idle_within(state.options.drain_timeout):
            logger.warning("aborting %d requests that did not finish in time", len(state.active))
            for generation in list(state.active):
                await generation.abort()
            if not await self._idle_within(_GRACE_S):
                state.engine.give_up()  # it does not answer: clients are told all the same
        self._server.should_exit = True

    async def watch_engine(self) -> None:
        """Start an engine that died anew, as often as the options say; then end the server."""
        restarts_left = self._state.options.restart_engine
        while self.death is None:
            await asyncio.sleep(_HEALTH_INTERVAL_S)
            try:
                self._state.engine.check_health()
            except EngineDeadError as error:
                if self._state.engine.is_recovering:
                    continue
                if self._drain is not None and self._server.should_exit:
                    return
                self.death = await self._restart(restarts_left) if restarts_left > 0 and not self._drain else error
                restarts_left -= 1
        self._state.dead_reason = str(self.death)
        await asyncio.sleep(_LAST_WORDS_S)
        self._server.should_exit = True

    async def _restart(self, restarts_left: int) -> EngineStartError | None:
        """Start the engine anew. Returns the error, if there is one."""
        logger.warning("starting the engine anew (--restart-engine: %d more times after this)", restarts_left - 1)
        try:
            await self._state.engine.restart()
        except EngineStartError as error:
            return error
        logger.info("the engine works again")
        return None

    async def _idle_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._state.active and self._state.dead_reason is None:
            if time.monotonic() >= deadline or self._server.should_exit:
                return False
            await asyncio.sleep(0.02)
        return True


def uvicorn_settings(app: Any, options: ServerOptions) -> uvicorn.Config:
    """How uvicorn serves `app`; for one server.

    Raises:
        ConfigError: the files for TLS are not what they should be.
    """
    others = OpenConnections(connections_that_fit(options.max_connections))
    connection: Any = functools.partial(Connection, limits=ConnectionLimits.of(options), others=others)
    config = uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=options.timeout_keep_alive,
        timeout_graceful_shutdown=_GRACE_S,
    )
    config.load()
    config.ssl = tls_context(options)
    return config


def serve(args: EngineArgs, options: ServerOptions, listener: socket.socket, *, started: float) -> None:
    """Run a server on `listener` until a signal or the engine's death.

    Args:
        started: `time.time()` at which the process began, for the banner.

    Raises:
        EngineStartError, ConfigError, ValueError, OSError: it could not start.
        EngineDeadError: the engine died. Nothing is logged after this, so the error can be the last line.
    """
    loop_factory = uvicorn.Config("unused", log_config=None).get_loop_factory()
    with _own_signals(), asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(args, options, listener, started))


async def _serve(args: EngineArgs, options: ServerOptions, listener: socket.socket, started: float) -> None:
    starting = asyncio.ensure_future(_start_engine(args))
    # The routes take a third of a second to import, and the engine starts meanwhile in a process of its own.
    routes = await asyncio.to_thread(importlib.import_module, "atom_server.app")
    engine = await starting
    if engine is None:
        return
    try:
        app = routes.create_app(engine, options)
        state: ServerState = app.state.server
        server = SignalFreeServer(uvicorn_settings(app, options))
        life = Lifecycle(state, server)
        _handle_signals(life.on_signal)
        watches = (life.watch_engine(), watch_descriptors(), watch_loop(state.metrics.loop_lag))
        if state.batches is not None:
            watches = (*watches, state.batches.run(app, state))
        watching = [asyncio.ensure_future(each) for each in watches]
        scheme = "https" if options.ssl_certfile else "http"
        show_banner(state, url_of(listener, scheme), seconds=time.time() - started)
        # Garbage collection leaves out what stays for good, so that streams do not wait for it.
        gc.collect()
        gc.freeze()
        await server.serve(sockets=[listener])
        await cancel_all(*watching)
        state.close()
        if life.death is not None:
            raise life.death
    finally:
        gc.unfreeze()
        await engine.shutdown(0.0)


async def _start_engine(args: EngineArgs) -> AsyncEngine | None:
    """The started engine; None where a signal came first."""
    starting = asyncio.ensure_future(AsyncEngine.start(args))
    _handle_signals(starting.cancel)
    try:
        return await starting
    except asyncio.CancelledError:
        logger.warning("stopped before the engine was ready")
        return None


@contextlib.contextmanager
def _own_signals() -> Generator[None, None, None]:
    """Leave signals as they were: uvloop's handlers stay behind its loop, and Ctrl-C would do nothing any more."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # code in C has its own, which Python cannot set again
                signal.signal(number, handler)


def _handle_signals(handler) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler)
