"""`KVEventsConfig`: where events about cached blocks go, in vLLM's spelling."""

from __future__ import annotations

import msgspec


class KVEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses as ZMQ writes them. With several engines ports count up by their number, and names end with it.

    Attributes:
        enable_kv_cache_events: False leaves events out.
        publisher: "zmq", or "null", which leaves them out too; None chooses by the field before.
        endpoint: where a PUB socket sends batches. It is bound at a ``*``, ``::``, loopback, ipc or inproc address,
            and connects to others. Whoever reads it sees the tokens of prompts, so there is none by default.
        replay_endpoint: where a ROUTER socket sends again what a subscriber has missed; None has none.
        buffer_steps: batches that are kept for that.
        hwm: batches that wait for a slow subscriber; it misses later ones.
        topic: what messages begin with.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    topic: str = ""

    @property
    def is_on(self) -> bool:
        """Whether events are told."""
        return self.enable_kv_cache_events and self.publisher != "null"


def address_of(address: str, rank: int) -> str:
    """An address as the engine of a number has it."""
    if rank == 0:
        return address
    head, _, port = address.rpartition(":")
    return f"{head}:{int(port) + rank}" if address.startswith("tcp") else f"{address}_dp{rank}"
