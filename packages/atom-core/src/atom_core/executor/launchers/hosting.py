"""`host_rank`: starts a rank for an engine elsewhere, and tells it how the rank ends. Torch-free."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from atom_core.executor.launchers.connections import connect
from atom_core.executor.launchers.handshake import Purpose
from atom_core.executor.launchers.this_host import WORKER, start_rank
from atom_core.failure import describe_exit


def host_rank(
    address: tuple[str, int],
    secret: bytes,
    rank: int,
    *,
    environment: Mapping[str, str],
    command: Sequence[str] = WORKER,
    on_start: Callable[[], None] | None = None,
) -> str:
    """Start a rank on this host, and wait until it ends; it ends with the calling thread, and with the engine.

    Args:
        address: where the engine listens.
        secret: what both ends must know.
        rank: its number.
        environment: the variables of its process.
        command: runs a rank.
        on_start: called once the rank's process has started.

    Returns how it ended, such as "ended with code 0".

    Raises:
        OSError: the engine cannot be reached, or the rank cannot be started.
        NotProvedError: whoever listens at `address` is not our engine.
    """
    with connect(address, secret, rank, Purpose.LIFELINE) as lifeline:
        try:
            process = start_rank(
                command, connect(address, secret, rank, Purpose.STEPS), inherits=(), environment=environment
            )
        except OSError as error:
            _tell(lifeline, f"could not be started: {error}")
            raise
        if on_start is not None:
            on_start()
        threading.Thread(target=_end_with, args=(lifeline, process), daemon=True).start()
        words = describe_exit(process.wait())
        _tell(lifeline, words)
        return words


def _end_with(lifeline: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """The engine says nothing over a lifeline: it closes it, or is gone."""
    with contextlib.suppress(OSError):
        lifeline.recv(1)
    process.kill()


def _tell(lifeline: socket.socket, words: str) -> None:
    with contextlib.suppress(OSError):  # an engine that is gone hears nothing
        lifeline.sendall(words.encode())
        lifeline.shutdown(socket.SHUT_RDWR)
