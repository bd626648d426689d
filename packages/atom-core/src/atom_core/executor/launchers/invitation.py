"""How processes that torchrun started learn where their engine listens, and the secret that both must know. Torch-free.

Those of one host ask over a socket whose name is only known there, and both ends look at whose process the other one
is: the kernel says it. Those of several hosts have the secret in their environment, and the address is that of
``MASTER_ADDR``, at the port after ``MASTER_PORT``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time

import msgspec

from atom_core import settings
from atom_core.config.options import ConfigError
from atom_core.errors import EngineStartError
from atom_core.settings import Torchrun

_TRY_SECONDS = 0.1
_LONGEST = 4096
# The id of a process, its user and its group.
_CREDENTIALS = struct.Struct("3i")
SHORTEST_SECRET = 32


class Invitation(msgspec.Struct, frozen=True):
    """Where an engine listens, and the secret that it and the hosts of its ranks know."""

    host: str
    port: int
    secret: bytes


class Inviter:
    """Hands an invitation to processes of the same user on this host, until it is closed.

    Raises:
        OSError: another engine of the same torchrun does so.
    """

    def __init__(self, process: Torchrun, invitation: Invitation) -> None:
        self._data = msgspec.msgpack.encode(invitation)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(_name(process))
        self._socket.listen()
        threading.Thread(target=self._hand_out, name="invitations", daemon=True).start()

    def close(self) -> None:
        """Invite nobody any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _hand_out(self) -> None:
        while True:
            try:
                end, _ = self._socket.accept()
            except OSError:  # it was closed
                return
            with end, contextlib.suppress(OSError):
                if _is_ours(end):
                    end.sendall(self._data)


def ask_for_invitation(process: Torchrun, seconds: float) -> Invitation:
    """The invitation of the engine of process 0, which may have yet to start.

    Raises:
        EngineStartError: there was none in so many seconds.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
            asking.settimeout(5.0)
            asking.connect(_name(process))
            if _is_ours(asking) and (data := asking.recv(_LONGEST)):
                return msgspec.msgpack.decode(data, type=Invitation)
        time.sleep(_TRY_SECONDS)
    raise EngineStartError(f"rank {process.rank} waited {seconds:.0f} s for the engine of rank 0, which did not start")


def invitation_of_environment(process: Torchrun) -> Invitation:
    """The invitation that all processes of several hosts find in their environment.

    Raises:
        ConfigError: there is no secret, or no address that other nodes reach.
    """
    secret = settings.ranks_secret()
    if secret is None or len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"torchrun started ranks on several nodes, and ATOM_RANKS_SECRET has no {SHORTEST_SECRET} characters: set "
            "it to the same text on all of them (openssl rand -hex 32)"
        )
    try:
        host = socket.getaddrinfo(process.host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise ConfigError(f"MASTER_ADDR is {process.host}: {error.strerror}") from None
    if str(host).startswith("127."):
        raise ConfigError(
            f"MASTER_ADDR is {process.host}, which no other node reaches: give an address of rank 0's node"
        )
    return Invitation(str(host), process.port + 1, secret.encode())


def _name(process: Torchrun) -> str:
    """A name without a file, which goes with the socket."""
    return f"\0atom-ranks-{os.getuid()}-{process.port}"


def _is_ours(end: socket.socket) -> bool:
    """Whether the other end is a process of the same user."""
    _, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user == os.getuid()
