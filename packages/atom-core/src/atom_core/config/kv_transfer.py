"""`read_kv_transfer`: what `kv_transfer_config` says, checked. Torch-free."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from atom_core.config.options import ConfigError
from atom_core.kv_transfer.config import KVTransferConfig, is_loopback

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.sections import ParallelConfig

CONNECTORS = ("TcpConnector", "NixlConnector")
ROLES = ("kv_producer", "kv_consumer", "kv_both")
DEFAULT_PORT = 14579


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of vLLM's `KVTransferConfig` that mean something here."""

    kv_connector: str | None = None
    kv_role: str | None = None
    kv_ip: str = "127.0.0.1"
    kv_port: int = DEFAULT_PORT
    kv_buffer_size: float = 1e9
    engine_id: str | None = None
    kv_load_failure_policy: str = "recompute"
    kv_connector_extra_config: dict[str, Any] = {}


class _Extra(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of `kv_connector_extra_config`."""

    peers: list[str] = []
    secret_file: str | None = None
    timeout: float = 10.0
    hold_seconds: float = 120.0
    shared_memory: bool = True


_Fields = TypeVar("_Fields", _Given, _Extra)


def read_kv_transfer(given: Mapping[str, Any] | None) -> KVTransferConfig | None:
    """What `kv_transfer_config` says; None where no engine is beside this one.

    Raises:
        ConfigError: one line that says which field is wrong.
    """
    if given is None:
        return None
    asked = _convert(given, _Given, "kv_transfer_config")
    extra = _convert(asked.kv_connector_extra_config, _Extra, "kv_connector_extra_config")
    _check_choice("kv_connector", asked.kv_connector, CONNECTORS)
    _check_choice("kv_role", asked.kv_role, ROLES)
    _check_choice("kv_load_failure_policy", asked.kv_load_failure_policy, ("recompute",))
    if not 1 <= asked.kv_port <= 65535:
        raise _wrong(f"kv_port {asked.kv_port}; it must be from 1 to 65535")
    if asked.kv_ip in ("", "*", "0.0.0.0", "::"):
        raise _wrong(f"kv_ip {asked.kv_ip!r}: give the one address of this host by which the other engine meets it")
    if not asked.kv_buffer_size >= 1 << 10:
        raise _wrong(f"kv_buffer_size {asked.kv_buffer_size:g}; it is in bytes, and must be at least 1024")
    for name in ("timeout", "hold_seconds"):
        if not 0 < getattr(extra, name) <= 86400:
            raise _wrong(f"{name} {getattr(extra, name):g}; it is in seconds, above 0 and at most 86400")
    _check_peers(asked, extra)
    return KVTransferConfig(
        kv_connector=asked.kv_connector or "",
        kv_role=asked.kv_role,  # pyright: ignore[reportArgumentType]
        kv_ip=asked.kv_ip,
        kv_port=asked.kv_port,
        engine_id=asked.engine_id or secrets.token_hex(8),
        buffer_bytes=int(asked.kv_buffer_size),
        peers=tuple(extra.peers),
        secret=_secret(asked, extra),
        timeout=extra.timeout,
        hold_seconds=extra.hold_seconds,
        shared_memory=extra.shared_memory,
    )


def of_engine(config: KVTransferConfig, parallel: ParallelConfig) -> KVTransferConfig:
    """The configuration of one of several engines, whose ports lie one behind the other."""
    number = parallel.data_parallel_rank
    if not number:
        return config
    port = config.kv_port + number * parallel.ranks_of_engine if config.sends else config.kv_port
    return msgspec.structs.replace(config, engine_id=f"{config.engine_id}-{number}", kv_port=port)


def check_kv_transfer(args: EngineArgs) -> None:
    """Raise ConfigError where other settings do not go with it."""
    if read_kv_transfer(args.kv_transfer_config) is None:
        return
    if not args.enable_prefix_caching:
        raise ConfigError("kv_transfer_config brings cached prefixes, and enable_prefix_caching is off: give one")
    if args.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size is {args.pipeline_parallel_size}, and kv_transfer_config does not go with it: "
            "leave out one of them"
        )


def check_travels(architecture: str) -> None:
    """Raise ConfigError where the model keeps what does not travel."""
    from atom_models.architectures.registry import keeps_states

    if keeps_states(architecture):
        raise ConfigError(
            f"kv_transfer_config is set, and {architecture} keeps states beside its blocks, which do not travel: "
            "leave it out"
        )


def _check_peers(asked: _Given, extra: _Extra) -> None:
    for peer in extra.peers:
        host, _, port = peer.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise _wrong(f"the peer {peer!r}; peers are such as 10.0.0.5:{DEFAULT_PORT}")
    if asked.kv_role == "kv_both" and not extra.peers:
        raise _wrong(
            "kv_role 'kv_both' without peers in kv_connector_extra_config: name the engines that prompts may be "
            f'fetched from, such as {{"peers": ["127.0.0.1:{DEFAULT_PORT + 1}"]}}'
        )


def _secret(asked: _Given, extra: _Extra) -> bytes:
    """What is in the file for it.

    Raises:
        ConfigError: it cannot be read, or is too short; or there is none, and others than this machine are met.
    """
    if extra.secret_file is None:
        hosts = [asked.kv_ip, *(peer.rpartition(":")[0] for peer in extra.peers)]
        open_to = next((host for host in hosts if not is_loopback(host)), None)
        if open_to is None:
            return b""
        raise _wrong(
            f"the address {open_to}, where other machines are met, and no secret_file: make one by `openssl rand -hex "
            "32 > secret`, give both engines its content, and name the file in kv_connector_extra_config"
        )
    try:
        secret = Path(extra.secret_file).read_bytes().strip()
    except OSError as error:
        raise _wrong(f"secret_file {extra.secret_file!r}, which cannot be read: {error.strerror}") from None
    if len(secret) < 16:
        raise _wrong(f"secret_file {extra.secret_file!r} with {len(secret)} bytes; give 16 at least")
    return secret


def _check_choice(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise _wrong(f"no {name}; give one of {listed}" if value is None else f"{name} {value!r}; allowed: {listed}")


def _convert(given: Mapping[str, Any], kind: type[_Fields], name: str) -> _Fields:
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(kind.__struct_fields__)
        raise ConfigError(f"{name}: {error}; it may have {fields}") from None


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"kv_transfer_config has {what}")
