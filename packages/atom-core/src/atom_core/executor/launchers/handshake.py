"""Both ends of a connection between an engine and a rank's host prove that they know the engine's secret. Torch-free.

The engine sends a number that it uses once. The host answers with the rank, the purpose of the connection, a number of
its own and a proof: the HMAC-SHA256 of all of them under the secret. The engine answers with its own proof. The secret
itself is never sent, a proof holds for one connection, and neither end's proof can be taken for the other's. What
follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

from atom_core.proved_sockets import proof, receive, send_all

SECRET_BYTES = 32
# An end that says nothing is left after so long.
PROOF_SECONDS = 5.0
_NUMBER_BYTES = 32
_PROOF_BYTES = 32
_BY_HOST, _BY_ENGINE = b"rank of atom", b"engine of atom"
_WHO = struct.Struct("!IB")


class NotProvedError(ConnectionError):
    """The other end does not know the secret, or does not speak as an end of ours does."""


class Purpose(IntEnum):
    """What a connection is for: the steps of a rank, or the news of its process."""

    STEPS = 0
    LIFELINE = 1


class Caller(NamedTuple):
    """Who is at the other end, and what for."""

    rank: int
    purpose: Purpose


def make_secret() -> bytes:
    """A secret for one engine."""
    return secrets.token_bytes(SECRET_BYTES)


def prove_as_engine(end: socket.socket, secret: bytes, seconds: float = PROOF_SECONDS) -> Caller:
    """Who the other end is, once both have proved that they know the secret.

    Raises:
        NotProvedError: it does not know it, it has gone, or it took longer than `seconds`.
    """
    line = _Line(end, seconds)
    number = secrets.token_bytes(_NUMBER_BYTES)
    line.send(number)
    who, theirs, given = line.read(_WHO.size), line.read(_NUMBER_BYTES), line.read(_PROOF_BYTES)
    said = who + number + theirs
    if not hmac.compare_digest(given, proof(secret, _BY_HOST, said)):
        raise NotProvedError("it does not know this engine's secret")
    rank, purpose = _WHO.unpack(who)
    if purpose not in list(Purpose):
        raise NotProvedError(f"it asks for a connection of a kind that there is not: {purpose}")
    line.send(proof(secret, _BY_ENGINE, said))
    end.settimeout(None)
    return Caller(rank, Purpose(purpose))


def prove_as_host(end: socket.socket, secret: bytes, caller: Caller, seconds: float = PROOF_SECONDS) -> None:
    """The host's side of `prove_as_engine`.

    Raises:
        NotProvedError: the other end does not know the secret or took longer than `seconds`, or does not let us in.
    """
    line = _Line(end, seconds)
    number = line.read(_NUMBER_BYTES)
    ours, who = secrets.token_bytes(_NUMBER_BYTES), _WHO.pack(*caller)
    said = who + number + ours
    line.send(who + ours + proof(secret, _BY_HOST, said))
    if not hmac.compare_digest(line.read(_PROOF_BYTES), proof(secret, _BY_ENGINE, said)):
        raise NotProvedError("what listens there is not this rank's engine: it does not know the secret")
    end.settimeout(None)


class _Line:
    """Reads and sends bytes until a deadline."""

    def __init__(self, end: socket.socket, seconds: float) -> None:
        self._end, self._until = end, time.monotonic() + seconds

    def send(self, data: bytes) -> None:
        try:
            send_all(self._end, data, self._until)
        except OSError as error:
            raise NotProvedError(f"what was said did not arrive: {error.strerror or error}") from None

    def read(self, size: int) -> bytes:
        try:
            return receive(self._end, size, self._until)
        except OSError as error:
            raise NotProvedError(f"the other end said nothing: {error.strerror or error}") from None
