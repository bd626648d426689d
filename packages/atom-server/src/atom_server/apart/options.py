"""`RouteOptions`: every setting of ``atom route``, as flags and as keywords."""

from __future__ import annotations

import argparse
import dataclasses
import functools

from atom_core.config.options import ConfigError, add_options, option, options_of

_option = functools.partial(option, section="Route")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteOptions:
    """The settings that people write for ``atom route``; each is a flag, in kebab or snake case.

    Raises:
        ConfigError: a value that is not allowed.
    """

    prefill: str | None = _option(None, "URLs of the servers that compute prompts, separated by commas.")
    decode: str | None = _option(None, "URLs of the servers that go on from them, separated by commas.")
    host: str = _option("127.0.0.1", "Address to listen on; 0.0.0.0 is every one of this machine.")
    port: int = _option(8000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    prefill_timeout: float = _option(
        300.0,
        "Seconds after which a prompt is not waited for any longer, and computed by the decode server.",
        minimum=0.01,
    )
    health_interval: float = _option(
        1.0, "Seconds between two questions to each server whether it is well.", minimum=0.01
    )
    health_timeout: float = _option(
        5.0,
        "Seconds without an answer to that after which a server is left out, and what waits for it is given up.",
        minimum=0.01,
    )
    max_body_mb: float = _option(16.0, "Larger request bodies are refused, in MiB.", minimum=0.001, maximum=65536)
    log_level: str = _option(
        "info", "How much to log; info is one line for each request.", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            object.__setattr__(self, entry.name, entry.check(getattr(self, entry.name)))
        for name in ("prefill", "decode"):
            if not listed(getattr(self, name)):
                raise ConfigError(f"{name} names no server; give --{name} http://HOST:PORT")

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add every flag to `parser`."""
        add_options(parser, cls)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> RouteOptions:
        """The options that a parsed namespace gives."""
        given = {entry.name: getattr(args, entry.name, None) for entry in options_of(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})


def listed(urls: str | None) -> list[str]:
    """The parts between commas."""
    return [url for part in (urls or "").split(",") if (url := part.strip())]
