"""Which addresses of a network may be asked, and which addresses a name has."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from atom_server.pictures.data_url import PictureError

Address = IPv4Address | IPv6Address
JudgeAddress = Callable[[Address], bool]
Resolve = Callable[[str, int], Sequence[Address]]

# Networks whose addresses end with one of IPv4: those of translators (RFC 6052), and the oldest form.
_ENDS_WITH_IPV4 = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
# They reach others by relays that nobody runs any more (Teredo, 6to4), or translate within a network (RFC 8215).
_NEVER = (IPv6Network("2001::/32"), IPv6Network("2002::/16"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet, by whatever form it is written."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if any(address in network for network in _ENDS_WITH_IPV4):
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if any(address in network for network in _NEVER) or address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def addresses_of(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the order in which the system would try them.

    Raises:
        PictureError: it has none.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise PictureError(f"its server {host} is not known") from None
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))
