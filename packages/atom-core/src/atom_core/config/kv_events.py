"""`read_kv_events`: what `kv_events_config` says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from atom_core.config.options import ConfigError
from atom_core.kv_events.config import KVEventsConfig

_SCHEMES = ("tcp", "ipc", "inproc")


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


def _check_address(name: str, address: str | None) -> None:
    if address is None:
        return
    scheme, _, rest = address.partition("://")
    is_port = scheme != "tcp" or rest.rpartition(":")[2].isdecimal()
    if scheme not in _SCHEMES or not rest or not is_port:
        raise ConfigError(
            f"kv_events_config has {name} {address!r}; it must be such as tcp://*:5557 or ipc:///run/atom-kv"
        )
