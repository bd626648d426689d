"""TCP connections between nodes: where an engine listens, and which end notices that the other one's node is lost."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

from atom_core.executor.launchers.handshake import Caller, Purpose, prove_as_host

CONNECT_SECONDS = 10.0
# An idle connection whose other end does not answer so many questions, a second apart, is lost.
UNANSWERED_QUESTIONS = 3
_SIOCGIFADDR = 0x8915


def listen(address: str, port: int = 0) -> socket.socket:
    """Listen at one address of this host, at a free port unless one is given.

    Raises:
        ValueError: the address is that of all interfaces.
        OSError: it is not an address of this host.
    """
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError(f"{address} is every network of this host: name the address of one")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def connect(address: tuple[str, int], secret: bytes, rank: int, purpose: Purpose) -> socket.socket:
    """A connection to the engine that listens at `address`, after both ends have proved that they know the secret.

    Raises:
        OSError: nobody listens there.
        NotProvedError: whoever does is not our engine.
    """
    end = socket.create_connection(address, CONNECT_SECONDS)
    try:
        prove_as_host(end, secret, Caller(rank, purpose))
        set_up(end, purpose)
    except BaseException:
        end.close()
        raise
    return end


def set_up(end: socket.socket, purpose: Purpose) -> None:
    """Have steps leave at once, and a lifeline, over which next to nothing is sent, notice a lost node.

    A connection with data on its way would notice that minutes later, or take a busy process for a lost one.
    """
    if purpose is Purpose.STEPS:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, UNANSWERED_QUESTIONS)


def address_towards(host: str, port: int) -> str:
    """The address of this host from which `host` is reached."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))  # sends nothing
        return asking.getsockname()[0]


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address, by its name; None where this host has none such."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no such address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
