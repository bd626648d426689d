"""`MediaDomains`: the servers that pictures may be fetched from, as `--allowed-media-domains` names them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atom_core.config.options import ConfigError

PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(?P<host>\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


class MediaDomains:
    """An allow-list of servers.

    Args:
        entries: ``images.example``; ``*.images.example`` for all names below it; ``*`` for any. Behind a colon may
            stand a port, which is allowed for this name alone.

    Raises:
        ConfigError: an entry is written otherwise, such as one with a scheme or a path.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries: list[tuple[str, int | None]] = []
        for entry in entries:
            found = _ENTRY.fullmatch(entry.lower())
            if found is None:
                raise ConfigError(
                    f"allowed_media_domains has {entry!r}; an entry is a server's name, *.name for all below it, or * "
                    "for any, with a port behind it where that is not the scheme's own: images.example or "
                    "*.images.example:8443"
                )
            self._entries.append((found["host"], int(found["port"]) if found["port"] else None))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def allow(self, scheme: str, host: str, port: int | None) -> bool:
        """Whether something may be fetched from there.

        Args:
            host: in lower case, without a dot at its end.
            port: None for the scheme's own.
        """
        is_own = port in (None, PORTS[scheme])
        return any(
            _fits(name, host) and (is_own if own_port is None else own_port == (port or PORTS[scheme]))
            for name, own_port in self._entries
        )


def _fits(name: str, host: str) -> bool:
    if name == "*":
        return True
    return host.endswith(name[1:]) if name.startswith("*.") else host == name.strip("[]")
