"""Two workers of which one keeps prompts and the other fetches them, and meddling with what is said between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from msgspec.structs import replace

from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.messages import BlockCopy, PeerPrompt, Transfer
from atom_core.worker.offload.host_bytes import HostBytes
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.transfer.factory import make_windows
from atom_core.worker.transfer.tcp_connector import TcpConnector
from engines_apart import free_port
from meddling_proxy import MeddlingProxy

NUM_BLOCKS = 12
LAYOUT = {"architecture": "Llama", "block_size": "16"}
PROMPT = PeerPrompt("engine", "key", b"digest")


class Worker:
    """The cache of a worker, `NUM_BLOCKS` blocks of two tensors, and its connector."""

    def __init__(self, config: KVTransferConfig, layout: dict[str, str] = LAYOUT, *, first: float = 0.0) -> None:
        self.cache = [torch.full((NUM_BLOCKS, 3), first), torch.full((NUM_BLOCKS, 2, 2), first)]
        for tensor in self.cache:
            tensor += torch.arange(NUM_BLOCKS).view(-1, *[1] * (tensor.dim() - 1))
        self.places = HostPlaces(HostBytes(self.cache, NUM_BLOCKS))
        self.connector = TcpConnector(config, 0, self.places, layout, make_windows(config, self.places))

    def keep(self, block_ids: list[int], prompt: PeerPrompt = PROMPT) -> Any:
        """Blocks as a prompt that a peer is to fetch; when it has ended, how many were fetched."""
        self.places.save([BlockCopy(block_id, place) for place, block_id in enumerate(block_ids)])
        copies = tuple(BlockCopy(place, place) for place in range(len(block_ids)))
        return self.connector.begin(Transfer(1, "send", copies, prompt))

    def fetch(self, port: int, copies: dict[int, int], prompt: PeerPrompt = PROMPT) -> int:
        """Positions of a prompt into blocks; how many came."""
        moves = tuple(BlockCopy(source, target) for source, target in copies.items())
        transfer = Transfer(1, "fetch", moves, replace(prompt, host="127.0.0.1", port=port))
        return self.connector.begin(transfer).result(20)

    def values(self, *block_ids: int) -> list[float]:
        """What blocks hold, the same in all of their numbers."""
        rows = [torch.cat([tensor[block_id].flatten() for tensor in self.cache]) for block_id in block_ids]
        assert all(bool((row == row[0]).all()) for row in rows)
        return [float(row[0]) for row in rows]


def make_config(role: str, port: int, **overrides: Any) -> KVTransferConfig:
    values = {"kv_connector": "TcpConnector", "engine_id": "engine", "buffer_bytes": 1, "timeout": 20.0}
    return KVTransferConfig(**values | {"kv_role": role, "kv_ip": "127.0.0.1", "kv_port": port} | overrides)


WAYS: dict[str, dict[str, Any]] = {
    "socket": {"shared_memory": False},
    "shared memory": {},
    "nixl": {"kv_connector": "NixlConnector"},
}
"""What is configured for pages to go each way."""
MakePair = Callable[..., AbstractContextManager[tuple[Worker, Worker, int]]]
"""Makes a worker that sends, one that fetches, and the port between them."""


@contextmanager
def pair_of_workers(
    way: str,
    *,
    of_sender: dict[str, Any] | None = None,
    layout: dict[str, str] = LAYOUT,
    **of_fetcher: Any,
) -> Iterator[tuple[Worker, Worker, int]]:
    port, of_both = free_port(), WAYS[way]
    of_sender, of_fetcher = of_both | (of_sender or {}), of_both | of_fetcher
    sender = Worker(make_config("kv_producer", port, **of_sender), first=100.0)
    fetcher = Worker(make_config("kv_consumer", port, **of_fetcher), layout)
    try:
        yield sender, fetcher, port
    finally:
        for worker in (fetcher, sender):
            worker.connector.close()


def flip(number: int) -> Callable[[bytearray, int], bool]:
    """Change the byte that is the `number`th of the answer."""

    def meddle(data: bytearray, before: int) -> bool:
        if before <= number < before + len(data):
            data[number - before] ^= 1
        return True

    return meddle


def length_of_answer(pair: MakePair) -> int:
    """Bytes that the sender says for a prompt of five blocks."""
    count = 0

    def meddle(data: bytearray, before: int) -> bool:
        nonlocal count
        count = before + len(data)
        return True

    with pair() as (sender, fetcher, port), MeddlingProxy(port, meddle) as proxy:
        sender.keep([3, 4, 5, 6, 7])
        assert fetcher.fetch(proxy.port, dict(enumerate(range(5)))) == 5
    return count
