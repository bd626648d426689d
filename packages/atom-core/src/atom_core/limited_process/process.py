"""`LimitedProcess`: one process that answers questions, seen from the one that asks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from typing import IO, cast

from atom_core import settings
from atom_core.limited_process.frames import TimedFrames
from atom_core.limited_process.limits import Limits

_END_SECONDS = 1.0


class TooMuchError(ValueError):
    """The question took more than a limit; the message begins with a verb and says which."""


class UnansweredError(RuntimeError):
    """There is no answer, and nothing is known against the question; the message begins with a verb."""


class LimitedProcess:
    """One process.

    Args:
        module: its main module, which calls `answer_questions`.
        limits: the limits of each answer.
        arguments: what its command line has behind the limits.

    Attributes:
        is_last: whether it ends with the answer that it gave.

    Raises:
        UnansweredError: it cannot be started, such as where no descriptor is left for its pipes.
    """

    def __init__(self, module: str, limits: Limits, *arguments: str) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, limits.on_command_line(), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what libraries print of a client's data
                env=settings.child_environment(1),
            )
        except OSError as error:
            raise UnansweredError(f"could not be started ({error.strerror}): try again later") from None
        self._limits = limits
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._frames = TimedFrames(self._questions.fileno(), self._answers.fileno())
        self.is_last = False

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def ask(self, question: bytes, clock_seconds: float) -> bytes:
        """Wait for the answer, for so many seconds at most. End the process after an error.

        Raises:
            TooMuchError, UnansweredError: there is none.
        """
        deadline = time.monotonic() + clock_seconds
        try:
            self._frames.send(question, deadline)
            received = self._frames.receive(deadline)
        except TimeoutError:
            raise UnansweredError(f"did not answer within {clock_seconds:g} s: try again later") from None
        except BrokenPipeError:
            received = None
        if received is None:
            raise self._why_gone()
        self.is_last = bool(received[0])
        return received[1]

    def end(self) -> None:
        """Kill it, and wait for its end."""
        if self.is_alive:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):  # of what it had not read
            self._questions.close()
        self._answers.close()
        self._process.wait()

    def _why_gone(self) -> TooMuchError | UnansweredError:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return UnansweredError("closed its output")
        if code == -signal.SIGPROF:
            return TooMuchError(f"takes more than {self._limits.cpu_seconds:g} s of processor time")
        if code < 0:
            most = f"{self._limits.memory_bytes >> 20} MiB of memory"
            return TooMuchError(f"takes more than {most}, or is more than the library can bear")
        return UnansweredError(f"ended with code {code}")
