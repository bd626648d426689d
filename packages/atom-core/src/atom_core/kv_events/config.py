"""`KVEventsConfig`: where events about cached blocks go, read in vLLM's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from atom_core.config.options import ConfigError

_SCHEMES = ("tcp", "ipc", "inproc")


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


def read_kv_events(given: Mapping[str, Any] | None) -> KVEventsConfig | None:
    """What `kv_events_config` says; None where no events are told.

    Raises:
        ConfigError: one line that says which field is wrong.
    """
    if given is None:
        return None
    try:
        config = msgspec.convert(dict(given), KVEventsConfig)
    except msgspec.ValidationError as error:
        fields = ", ".join(KVEventsConfig.__struct_fields__)
        raise ConfigError(f"kv_events_config: {error}; it may have {fields}") from None
    if config.publisher not in (None, "zmq", "null"):
        raise ConfigError(f"kv_events_config has the publisher {config.publisher!r}; allowed are 'zmq' and 'null'")
    for name in ("buffer_steps", "hwm"):
        if not 1 <= getattr(config, name) <= 10_000_000:
            raise ConfigError(f"kv_events_config has {name} {getattr(config, name)}; it must be from 1 to 10000000")
    if not config.is_on:
        return None
    if config.endpoint is None:
        raise ConfigError(
            "kv_events_config has no endpoint: give one, such as ipc:///run/atom-kv, or tcp://*:5557, where all of the "
            "network reads the tokens of prompts"
        )
    for name in ("endpoint", "replay_endpoint"):
        _check_address(name, getattr(config, name))
    return config


def address_of(address: str, rank: int) -> str:
    """An address as the engine of a number has it."""
    if rank == 0:
        return address
    head, _, port = address.rpartition(":")
    return f"{head}:{int(port) + rank}" if address.startswith("tcp") else f"{address}_dp{rank}"


def _check_address(name: str, address: str | None) -> None:
    if address is None:
        return
    scheme, _, rest = address.partition("://")
    is_port = scheme != "tcp" or rest.rpartition(":")[2].isdecimal()
    if scheme not in _SCHEMES or not rest or not is_port:
        raise ConfigError(
            f"kv_events_config has {name} {address!r}; it must be such as tcp://*:5557 or ipc:///run/atom-kv"
        )
