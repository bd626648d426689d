"""`RunningServer`: an app in a thread of the tests' process, over a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from openai import OpenAI

from atom_core import AsyncEngine, EngineArgs
from atom_server import ServerOptions, create_app
from atom_server.connections.disconnect import cancel_all
from atom_server.connections.listen import open_socket, url_of
from atom_server.lifecycle import SignalFreeServer, uvicorn_settings

NUM_BLOCKS = 640
# A start that fails ends the wait for it at once; one on a busy machine takes minutes.
START_SECONDS = 180.0


class RunningServer:
    """The app on a free port, in a thread of the test process; its engine is a process as always.

    Attributes:
        url: without a path.
        engine, state: the app's, to look at what clients cannot see.
        loop: that the app runs in.
    """

    def __init__(self, model: Path, options: ServerOptions | None = None, **engine_settings: Any) -> None:
        self._options = options or ServerOptions(served_model_name="tiny,tiny-alias")
        self._settings = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": NUM_BLOCKS, **engine_settings}
        self._model = model
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._started.wait(START_SECONDS), "the server did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not end"

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a JSON object and wait for the answer."""
        return httpx.post(self.url + path, json=fields, timeout=60)

    def client(self, **options: Any) -> OpenAI:
        """An official client of this server."""
        return OpenAI(base_url=self.url + "/v1", api_key="unused", max_retries=0, timeout=60, **options)

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Return when no request runs or waits and every block is free again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stats = self.engine.stats
            counts = stats and (stats.num_running, stats.num_waiting, stats.num_blocks - stats.num_free_blocks)
            if counts == (0, 0, 0) and not self.state.active:
                return
            time.sleep(0.02)
        raise AssertionError(f"after {seconds} s: {self.engine.stats}, active {self.state.active}")

    @contextlib.contextmanager
    def longest_pause(self) -> Iterator[list[float]]:
        """Puts the longest time, in seconds, that the app's event loop did nothing else into the list it gives."""
        pauses = [0.0]

        async def watch() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                pauses[0] = max(pauses[0], time.perf_counter() - before)

        watching = asyncio.run_coroutine_threadsafe(watch(), self.loop)
        try:
            yield pauses
        finally:
            watching.cancel()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            self.engine = await AsyncEngine.start(EngineArgs(model=str(self._model), **self._settings))
        except BaseException as error:
            self._failure = error
            self._started.set()
            return
        try:
            serving = self._begin_to_serve()
            gc.freeze()  # as `atom serve` does
            self._started.set()
            await serving
        finally:
            # What the tests' process has stays frozen: to go through it takes a second.
            await self.engine.shutdown(0.0)

    def _begin_to_serve(self) -> asyncio.Future[None]:
        listener = open_socket("127.0.0.1", 0)
        self.url = url_of(listener)
        app = create_app(self.engine, self._options)
        self.state = app.state.server
        self._server = SignalFreeServer(uvicorn_settings(app, self._options))
        return asyncio.ensure_future(self._serve(app, listener))

    async def _serve(self, app: FastAPI, listener: socket.socket) -> None:
        batches = self.state.batches
        working = [] if batches is None else [asyncio.ensure_future(batches.run(app, self.state))]
        await self._server.serve(sockets=[listener])
        await cancel_all(*working)
        self.state.close()


class Front(RunningServer):
    """Another app on the engine of a server that runs, with options of its own: no engine has to start for it."""

    def __init__(self, server: RunningServer, options: ServerOptions) -> None:
        self.engine, self.loop = server.engine, server.loop
        self._options, self._failure, self._started = options, None, threading.Event()
        self._thread = threading.Thread(target=self._wait_for_the_end, daemon=True)

    def _wait_for_the_end(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._run(), self.loop).result()
        except BaseException as error:
            self._failure = error
            self._started.set()

    async def _run(self) -> None:
        serving = self._begin_to_serve()
        self._started.set()
        await serving
