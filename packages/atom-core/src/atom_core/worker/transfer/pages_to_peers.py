"""`PagesToPeers`: listens where peers fetch this rank's part of prompts, and sends it to them."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping

from atom_core.config.options import ConfigError
from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.seldom import SeldomWarning
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.transfer.kept_prompts import KeptPrompts
from atom_core.worker.transfer.windows import OpenedWindow, Windows
from atom_core.worker.transfer.wire import (
    NUM_SLOTS,
    VERSION,
    Channel,
    Fetch,
    Hello,
    Pages,
    Received,
    Refused,
    TransferError,
    Welcome,
    checksum_of,
    frames_of,
    proof_of,
    window_shape,
)

logger = logging.getLogger(__name__)

# Peers that are served at once; others wait to be accepted.
MAX_CONNECTIONS = 64


class PagesToPeers:
    """A thread that listens, and one for each peer that it serves.

    Args:
        config: where, for whom, and for how long.
        rank: which of the engine's parts this is.
        places: where prompts are kept.
        layout: what pages consist of; a peer's must be the same.
        windows: how memory of peers is reached.

    Raises:
        ConfigError: the address cannot be had.
    """

    def __init__(
        self, config: KVTransferConfig, rank: int, places: HostPlaces, layout: Mapping[str, str], windows: Windows
    ) -> None:
        self._config, self._places, self._layout, self._windows = config, places, dict(layout), windows
        self.prompts = KeptPrompts(config.hold_seconds)
        self._warn = SeldomWarning(logger)
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: set[Channel] = set()
        self._is_closed = False
        address = host, port = config.kv_ip, config.kv_port + rank
        try:
            self._listener = socket.create_server(address, family=_family_of(address))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"kv_transfer_config: {host}:{port} cannot be had: {error}; give a free kv_port"
            ) from None
        threading.Thread(target=self._listen, name="peers", daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.prompts.close()
        for channel in list(self._open):
            channel.close()

    def _listen(self) -> None:
        while not self._is_closed:
            self._room.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._room.release()
                if not self._is_closed:
                    logger.exception("no peer can fetch prompts any more")
                return
            threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel = Channel(connection, self._config.timeout)
        self._open.add(channel)
        try:
            self._answer(channel)
        except TransferError as error:
            self._warn(f"a prompt was not sent to a peer: {error}")
            with contextlib.suppress(OSError, TransferError):
                channel.send(Refused(str(error)))
        except OSError as error:
            if not self._is_closed:
                self._warn(f"a prompt was not sent to a peer, which went away: {error}")
        except Exception:
            logger.exception("a prompt was not sent to a peer")
        finally:
            self._open.discard(channel)
            channel.close()
            self._room.release()

    def _answer(self, channel: Channel) -> None:
        hello = channel.expect(Hello)
        if hello.version != VERSION:
            raise TransferError(f"the peer says Hello of version {hello.version}, and {VERSION} is expected")
        secret, nonce = self._config.secret, os.urandom(32)
        channel.send(Welcome(nonce, proof_of(secret, b"sends", hello, nonce)))
        fetch = channel.expect(Fetch)
        if not hmac.compare_digest(fetch.proof, proof_of(secret, b"fetches", hello, nonce)):
            raise TransferError("the secrets of the two engines differ: give both the same secret_file")
        self._check(fetch)
        with self.prompts.taken(fetch.key, fetch.digest, self._config.timeout / 2) as places:
            if not all(0 <= position < len(places) for position in fetch.positions):
                raise TransferError(f"blocks outside of the {len(places)} of the prompt are asked for")
            with self._window(fetch, nonce) as window:
                self._send(channel, [places[position] for position in fetch.positions], window)

    def _check(self, fetch: Fetch) -> None:
        differing = [
            name for name in {**self._layout, **fetch.layout} if self._layout.get(name) != fetch.layout.get(name)
        ]
        if differing:
            name = differing[0]
            raise TransferError(
                f"the engines differ in {name}: {self._layout.get(name)} sends, and {fetch.layout.get(name)} fetches"
            )
        if fetch.engine_id != self._config.engine_id:
            raise TransferError("the engine that computed the prompt has ended, and another one has its address")

    @contextlib.contextmanager
    def _window(self, fetch: Fetch, nonce: bytes) -> Iterator[OpenedWindow | None]:
        shape = window_shape(len(fetch.positions), self._places.page_bytes)
        window = None if fetch.window is None else self._windows.open(fetch.window, shape, nonce)
        try:
            yield window
        finally:
            if window is not None:
                window.close()

    def _send(self, channel: Channel, places: list[int], window: OpenedWindow | None) -> None:
        self._places.wait_for_saves()
        if not all(map(self._places.is_saved, places)):
            raise TransferError("the step that keeps the prompt has failed")
        frames = list(frames_of(len(places), self._places.page_bytes))
        num_ahead = len(frames) if window is None else NUM_SLOTS
        for number, (sent, there) in enumerate(frames):
            pages = [self._places.page(place) for place in places[sent]]
            count, checksum = len(pages), checksum_of(pages)
            if number >= num_ahead:
                channel.expect(Received)
            if window is None:
                channel.send(Pages(count, checksum), [page.data for page in pages])
            else:
                channel.send(Pages(count, checksum, window.put(there.start, pages)))
        for _ in frames[-num_ahead:]:
            channel.expect(Received)


def _family_of(address: tuple[str, int]) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET
