"""Opens the server's socket before anything expensive happens, so that a port in use is known at once."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_server.options import ServerOptions

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


@contextlib.contextmanager
def listening(options: ServerOptions) -> Iterator[socket.socket]:
    """The socket that `options` ask for; a Unix socket's file is removed at the end.

    Raises:
        AddressError: see `open_socket` and `open_unix_socket`.
    """
    if options.uds is None:
        with open_socket(options.host, options.port) as listener:
            yield listener
        return
    path = Path(options.uds)
    with open_unix_socket(path) as listener:
        own = path.stat().st_ino
        try:
            yield listener
        finally:
            # Another server may have taken the path meanwhile.
            with contextlib.suppress(OSError):
                if path.stat().st_ino == own:
                    path.unlink()


def open_unix_socket(path: Path) -> socket.socket:
    """A listening Unix socket at `path`. The file of a server that is gone is replaced.

    Raises:
        AddressError: the path is taken, is no socket, or cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_answered(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            why = "a server listens there" if path.is_socket() else "there is something that is no socket"
            raise AddressError(f"cannot listen on {path}: {why}; choose another path with --uds") from None
        raise AddressError(f"cannot listen on {path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _is_answered(path: Path) -> bool:
    """Whether a server listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # its queue is full, or it is somebody else's
            return True
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host in ("localhost", "127.0.0.1"):  # what most clients say
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The address for clients on this machine, e.g. ``http://127.0.0.1:8000`` or ``http+unix:///run/atom``."""
    if listener.family == socket.AF_UNIX:
        return f"{scheme}+unix://{listener.getsockname()}"
    address, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, str(address))
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop what listens there, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one from 1024 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: choose another with --host"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
