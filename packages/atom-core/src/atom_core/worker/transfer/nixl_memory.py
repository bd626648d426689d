"""`NixlMemory`: the side that fetches reads pages out of the other one's memory, by NIXL over UCX.

It reads, and the other side does not write, because what comes late must not land where the next prompt is. NIXL cannot
call back a read that has begun: memory that one may still write to is kept for as long as the process lives.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from atom_core.config.options import ConfigError
from atom_core.worker.transfer.windows import OpenedWindow, PlainWindow, Window
from atom_core.worker.transfer.wire import NixlOffer, NixlPages, Offer, TransferError

INSTALL = "pip install 'nixl>=1.5.1'"
# After so many windows that were left to reads without an end, pages go through the socket.
MAX_LOST = 8


class NixlMemory:
    """See `Windows`. One NIXL agent, and the memory of this rank that peers may read.

    Args:
        readable: uint8 ``[n, page_bytes]``, where prompts are kept; n may be 0.
        timeout: seconds in which a read must end.

    Raises:
        ConfigError: NIXL is not installed, or cannot start.
    """

    def __init__(self, readable: np.ndarray, timeout: float) -> None:
        self.timeout = timeout
        self.lost: list[np.ndarray] = []
        # Reads over TCP need a thread of UCX on the side that is read.
        self.agent = _start_agent(has_thread=bool(len(readable)))
        if len(readable):
            self.agent.register_memory([_span(readable)], "DRAM")
        self._metadata: bytes = self.agent.get_agent_metadata()

    def make(self, shape: tuple[int, int], mark: bytes) -> Window:
        return NixlWindow(self, shape) if len(self.lost) < MAX_LOST else PlainWindow(shape)

    def open(self, offer: Offer, shape: tuple[int, int], mark: bytes) -> OpenedWindow | None:
        return self if isinstance(offer, NixlOffer) else None

    def put(self, first: int, pages: Sequence[np.ndarray]) -> NixlPages:
        """See `OpenedWindow`. The other side reads them where they are."""
        return NixlPages(self._metadata, [page.ctypes.data for page in pages])

    def close(self) -> None:
        """See `OpenedWindow`."""


class NixlWindow:
    """See `Window`."""

    offer: Offer | None = NixlOffer()

    def __init__(self, memory: NixlMemory, shape: tuple[int, int]) -> None:
        self._memory, self._is_lost = memory, False
        self.pages = np.empty(shape, np.uint8)
        self._registered = memory.agent.register_memory([_span(self.pages)], "DRAM") if self.pages.size else None

    def take(self, pages: np.ndarray, there: NixlPages) -> None:
        if len(there.addresses) != len(pages):
            raise TransferError(f"{len(there.addresses)} addresses came, and {len(pages)} are expected")
        size, agent = self.pages.shape[1], self._memory.agent
        try:
            peer = agent.add_remote_agent(there.agent)
            targets = agent.get_xfer_descs([(page.ctypes.data, size, 0) for page in pages], "DRAM")
            sources = agent.get_xfer_descs([(address, size, 0) for address in there.addresses], "DRAM")
            read = agent.initialize_xfer("READ", targets, sources, peer)
            self._is_lost = True
            self._wait(read, agent.transfer(read))
            self._is_lost = False
            agent.release_xfer_handle(read)
        except (TransferError, MemoryError):
            raise
        except Exception as error:  # NIXL's errors have no class of their own
            raise TransferError(f"NIXL cannot read: {error}") from error

    def close(self) -> None:
        if self._is_lost:
            self._memory.lost.append(self.pages)
        elif self._registered is not None:
            self._memory.agent.deregister_memory(self._registered)

    def _wait(self, read: Any, state: str) -> None:
        until = time.monotonic() + self._memory.timeout
        while state == "PROC":
            if time.monotonic() > until:
                raise TransferError("the peer's memory could not be read in time")
            time.sleep(1e-4)
            state = self._memory.agent.check_xfer_state(read)
        if state != "DONE":
            raise TransferError(f"NIXL says {state} of a read")


def _start_agent(has_thread: bool) -> Any:
    if find_spec("nixl") is None:
        raise ConfigError(f"kv_connector NixlConnector needs nixl, which is not installed: {INSTALL}")
    try:
        nixl: Any = import_module("nixl._api")
        sync_mode = nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT  # a thread fetches each prompt
        config = nixl.nixl_agent_config(enable_prog_thread=has_thread, backends=["UCX"], sync_mode=sync_mode)
        return nixl.nixl_agent(secrets.token_hex(8), config)
    except Exception as error:
        raise ConfigError(f"kv_connector NixlConnector: NIXL cannot start: {error}") from error


def _span(memory: np.ndarray) -> tuple[int, int, int, str]:
    """Contiguous memory, as NIXL has it: address, bytes, device, and a note."""
    return memory.ctypes.data, memory.nbytes, 0, ""
