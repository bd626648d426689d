"""`KVTransferConfig`: who computes prompts for whom, and where they meet."""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]


class KVTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `kv_transfer_config` says, checked.

    Attributes:
        kv_connector: how blocks travel.
        kv_role: whether this engine computes prompts for others, goes on from those of others, or both.
        kv_ip, kv_port: where rank 0 of the engine that computes prompts can be met; rank r has the port r behind it.
        engine_id: this engine, from its start to its end.
        buffer_bytes: memory of the host, over all ranks, for prompts that others are to fetch.
        peers: further engines that prompts may be fetched from, each ``host:port``.
        secret: what both sides know, and nobody else; empty where all is on this machine.
        timeout: seconds within which a peer must take or give each part of a transfer.
        hold_seconds: how long a prompt waits to be fetched.
        shared_memory: whether blocks go through memory that both engines map, where both do so and are on one machine.
    """

    kv_connector: str
    kv_role: KVRole
    kv_ip: str
    kv_port: int
    engine_id: str
    buffer_bytes: int
    peers: tuple[str, ...] = ()
    secret: bytes = b""
    timeout: float = 10.0
    hold_seconds: float = 120.0
    shared_memory: bool = True

    @property
    def sends(self) -> bool:
        """Whether it computes prompts for others."""
        return self.kv_role != "kv_consumer"

    @property
    def fetches(self) -> bool:
        """Whether it goes on from prompts of others."""
        return self.kv_role != "kv_producer"

    def may_fetch_from(self, host: str, port: int) -> bool:
        """Whether the configuration names this engine: requests alone must not make a server connect anywhere."""
        return self.fetches and f"{host}:{port}" in self.trusted

    @property
    def trusted(self) -> tuple[str, ...]:
        """The engines that prompts may be fetched from."""
        return self.peers if self.sends else (f"{self.kv_ip}:{self.kv_port}", *self.peers)


def is_loopback(host: str) -> bool:
    """Whether what is said to this address stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
