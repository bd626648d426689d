"""`TcpConnector`: blocks of prompts between two engines, over TCP or a way beside it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.messages import Transfer
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.transfer.pages_from_peers import PagesFromPeers
from atom_core.worker.transfer.pages_to_peers import PagesToPeers
from atom_core.worker.transfer.windows import Windows


class TcpConnector:
    """The `BlockCarrier` of a rank. Rank r of one engine talks to rank r of the other.

    Args:
        config: what this engine does for others, or they for it.
        rank: the number of this worker.
        places: where prompts are kept, and the cache that fetched ones go to.
        layout: what pages consist of; that of a peer must be the same.
        windows: the way of pages, where it is not the socket's.
    """

    kinds = ("fetch", "send")

    def __init__(
        self, config: KVTransferConfig, rank: int, places: HostPlaces, layout: Mapping[str, str], windows: Windows
    ) -> None:
        self._to_peers = PagesToPeers(config, rank, places, layout, windows) if config.sends else None
        self._from_peers = PagesFromPeers(config, rank, places, layout, windows)

    def begin(self, transfer: Transfer) -> Future[int]:
        if transfer.kind == "fetch":
            return self._from_peers.begin(transfer)
        if self._to_peers is None:
            raise ValueError("an engine that only fetches was told to send")
        return self._to_peers.prompts.add(transfer)

    def look(self) -> None:
        if self._to_peers is not None:
            self._to_peers.prompts.look()

    def close(self) -> None:
        self._from_peers.close()
        if self._to_peers is not None:
            self._to_peers.close()
