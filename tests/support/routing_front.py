"""`atom route` in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx

from atom_server.apart.front import Front
from atom_server.apart.options import RouteOptions
from atom_server.apart.routing import make_app
from atom_server.connections.listen import open_socket, url_of
from atom_server.lifecycle import SignalFreeServer, uvicorn_settings
from atom_server.options import ServerOptions


class RunningFront:
    """On a free port; `url` is without a path. Servers are asked ten times a second how they are."""

    def __init__(self, prefill: str, decode: str, **settings: Any) -> None:
        self._settings = {
            "prefill": prefill,
            "decode": decode,
            "health_interval": 0.1,
            "health_timeout": 30.0,
        } | settings
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> RunningFront:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=fields, timeout=60)

    async def _run(self) -> None:
        options, own = RouteOptions(**self._settings), ServerOptions()
        listener = open_socket("127.0.0.1", 0)
        self.url = url_of(listener)
        self.front = Front.of(options)
        self._server = SignalFreeServer(uvicorn_settings(make_app(self.front, own), own))
        watching = asyncio.ensure_future(self.front.watch(options))
        self._started.set()
        await self._server.serve(sockets=[listener])
        watching.cancel()
