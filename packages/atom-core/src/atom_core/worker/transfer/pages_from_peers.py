"""`PagesFromPeers`: fetches this rank's part of prompts that other engines have computed, into blocks of the cache."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.messages import BlockCopy, PeerPrompt, Transfer
from atom_core.seldom import SeldomWarning
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.transfer.windows import Window, Windows
from atom_core.worker.transfer.wire import (
    VERSION,
    Channel,
    Fetch,
    Hello,
    Pages,
    Received,
    TransferError,
    Welcome,
    checksum_of,
    frames_of,
    proof_of,
    window_shape,
)

logger = logging.getLogger(__name__)

# Prompts that are fetched at once: a peer that does not answer holds up none of another one.
NUM_THREADS = 8


class PagesFromPeers:
    """A few threads, each of which fetches one prompt at a time. What fails or takes too long is computed here.

    Args:
        config: whom this engine trusts, and for how long it waits.
        rank: which of the engine's parts this is; it fetches from the same rank.
        places: the cache that pages go to.
        layout: what pages consist of.
        windows: memory that peers may fill.
    """

    def __init__(
        self, config: KVTransferConfig, rank: int, places: HostPlaces, layout: Mapping[str, str], windows: Windows
    ) -> None:
        self._config, self._rank, self._places, self._layout = config, rank, places, dict(layout)
        self._windows, self._warn = windows, SeldomWarning(logger)
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="fetch")
        self._open: set[Channel] = set()
        self._is_closed = False

    def begin(self, transfer: Transfer) -> Future[int]:
        """Fetch in order; how many copies are right."""
        return self._threads.submit(self._fetch, transfer)

    def close(self) -> None:
        """End what runs."""
        self._is_closed = True
        for channel in list(self._open):
            channel.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, transfer: Transfer) -> int:
        prompt, progress = transfer.prompt, _Progress()
        if prompt is None:
            return 0
        try:
            self._take(prompt, transfer.copies, progress)
        except (TransferError, OSError) as error:
            if transfer.copies and not self._is_closed:
                self._warn(
                    f"a prompt could not be fetched from {prompt.host}:{prompt.port + self._rank}, and is computed "
                    f"here: {error}"
                )
        except Exception:
            logger.exception("a prompt could not be fetched, and is computed here")
        return progress.num_done

    def _take(self, prompt: PeerPrompt, copies: Sequence[BlockCopy], progress: _Progress) -> None:
        timeout = self._config.timeout
        address = (prompt.host, prompt.port + self._rank)
        channel = Channel(socket.create_connection(address, timeout=timeout), timeout)
        self._open.add(channel)
        try:
            if self._is_closed:
                return
            hello, welcome = self._meet(channel)
            shape = window_shape(len(copies), self._places.page_bytes)
            with contextlib.closing(self._windows.make(shape, welcome.nonce)) as window:
                fetch = Fetch(
                    proof=proof_of(self._config.secret, b"fetches", hello, welcome.nonce),
                    layout=self._layout,
                    engine_id=prompt.engine_id,
                    key=prompt.key,
                    digest=prompt.digest,
                    positions=[copy.source for copy in copies],
                    window=window.offer,
                )
                channel.send(fetch)
                self._receive(channel, [copy.target for copy in copies], window, progress)
        finally:
            self._open.discard(channel)
            channel.close()

    def _meet(self, channel: Channel) -> tuple[Hello, Welcome]:
        """What both sides have said, once the other one has proved that it knows the secret."""
        hello = Hello(VERSION, os.urandom(32))
        channel.send(hello)
        welcome = channel.expect(Welcome)
        if not hmac.compare_digest(welcome.proof, proof_of(self._config.secret, b"sends", hello, welcome.nonce)):
            raise TransferError("the secrets of the two engines differ: give both the same secret_file")
        return hello, welcome

    def _receive(self, channel: Channel, block_ids: Sequence[int], window: Window, progress: _Progress) -> None:
        for asked, there in frames_of(len(block_ids), self._places.page_bytes):
            pages, part = window.pages[there], block_ids[asked]
            frame = channel.expect(Pages, pages.reshape(-1).data)
            if frame.there is not None:
                window.take(pages, frame.there)
            if frame.count != len(part) or frame.checksum != checksum_of(pages):
                raise TransferError("what came is damaged")
            self._places.load(pages, part)
            progress.num_done += len(part)
            channel.send(Received())


class _Progress:
    """How many pages are in the cache."""

    num_done = 0
