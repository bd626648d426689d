"""Opens the server's socket before anything expensive happens, so that a port in use is known at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

_BACKLOG = 2048


class AddressError(OSError):
    """The server cannot listen where it was told to; one line that says why and what to do."""


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Connections wait in its queue until the server accepts them.

    Raises:
        AddressError: the port is taken, needs privileges, or the host is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise AddressError(f"cannot listen on host {host!r}: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(_explain(error, host, port)) from error
    listener.setblocking(False)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def url_of(listener: socket.socket) -> str:
    """The address for clients on this machine, e.g. ``http://127.0.0.1:8000``."""
    address, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, str(address))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop what listens there, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one from 1024 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: choose another with --host"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
