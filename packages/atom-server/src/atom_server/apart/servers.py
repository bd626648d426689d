"""`Servers`: the servers that do one half of the work, which of them answer, and which has least to do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from atom_core.config.options import ConfigError
from atom_server.apart.exchange import Exchange, ServerLostError

logger = logging.getLogger(__name__)


class Server:
    """One server.

    Attributes:
        name: its address, for people.
        is_up: whether it answered last time.
    """

    def __init__(self, url: str) -> None:
        self.url: SplitResult = urlsplit(url.rstrip("/"))
        if self.url.scheme not in ("http", "https") or not self.url.hostname:
            raise ConfigError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8001")
        self.name = self.url.netloc
        self.is_up = True
        self._open: set[Exchange] = set()

    @property
    def num_open(self) -> int:
        """Requests that it has not answered in full."""
        return len(self._open)

    @contextlib.asynccontextmanager
    async def asked(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes = b""
    ) -> AsyncIterator[Exchange]:
        """Its answer to a request.

        Raises:
            ServerLostError: there is none, or its end does not come.
        """
        exchange = Exchange(self.url)
        self._open.add(exchange)
        try:
            await exchange.send(method, path, headers, body)
            yield exchange
        finally:
            self._open.discard(exchange)
            exchange.close()

    def lose(self, reason: object) -> None:
        """It does not answer: nobody waits for it any longer."""
        if self.is_up:
            logger.warning("%s is left out until it answers again: %s", self.name, reason)
        self.is_up = False
        for exchange in list(self._open):
            exchange.close()

    def find(self) -> None:
        """It answers."""
        if not self.is_up:
            logger.info("%s answers again", self.name)
        self.is_up = True


class Servers:
    """Servers that do the same.

    Args:
        urls: where they are.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.all = [Server(url) for url in urls]

    @property
    def num_up(self) -> int:
        """How many answer."""
        return sum(server.is_up for server in self.all)

    def in_turn(self) -> Iterator[Server]:
        """Those that answer, the one with least to do first."""
        yield from sorted((server for server in self.all if server.is_up), key=lambda server: server.num_open)

    async def watch(self, interval: float, timeout: float) -> None:
        """Ask each of them now and then how it is, for ever."""
        await asyncio.gather(*(_watch(server, interval, timeout) for server in self.all))


async def _watch(server: Server, interval: float, timeout: float) -> None:
    while True:
        try:
            async with asyncio.timeout(timeout), server.asked("GET", "/health") as answer:
                status = answer.status
            if status == 200:
                server.find()
            else:
                server.lose(f"GET /health was answered with {status}")
        except TimeoutError:
            server.lose(f"GET /health was not answered within {timeout:g} s")
        except ServerLostError as error:
            server.lose(error)
        await asyncio.sleep(interval)
