"""`Judges`: asks processes that can be killed whether constraints can be followed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import select
import signal
import subprocess
import sys
import threading
from typing import IO, cast

from atom_core import settings
from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.choice import BackendSetting
from atom_core.structured_output.constraints.grammar import GrammarError, kind_of
from atom_core.structured_output.judge.limits import CLOCK_SECONDS, CPU_SECONDS, MEMORY_BYTES
from atom_core.structured_output.judge.messages import ENCODER, VERDICT, Question, Verdict

_END_SECONDS = 1.0


class JudgeError(RuntimeError):
    """A judge could not be asked; nothing is known against the constraint."""


class Judges:
    """Processes that are started when they are needed; any thread may ask, each asks one of its own.

    Attributes:
        num_started: processes so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Judge] = []
        self.num_started = 0

    def check(self, params: StructuredOutputParams, setting: BackendSetting = "auto") -> None:
        """Wait for the verdict on a constraint that passed `check_limits`.

        Raises:
            GrammarError: it is not sound, or takes more processor time or memory than a constraint may.
            JudgeError: the judge did not answer, for reasons of its own.
        """
        judge = self._take()
        try:
            verdict = judge.ask(Question(params, setting), kind_of(params))
        except BaseException:
            judge.end()
            raise
        if verdict.is_last:
            judge.end()
        else:
            with self._lock:
                self._idle.append(judge)
        if verdict.error is not None:
            raise GrammarError(verdict.error)

    def close(self) -> None:
        """End those that wait for questions; one that is at work ends with its work or at its limit."""
        with self._lock:
            idle, self._idle = self._idle, []
        for judge in idle:
            judge.end()

    def _take(self) -> _Judge:
        with self._lock:
            while self._idle:
                judge = self._idle.pop()
                if judge.is_alive:
                    return judge
                judge.end()
            self.num_started += 1
        return _Judge()


class _Judge:
    """One process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atom_core.structured_output.judge.judge_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what libraries print of a client's text
            env=settings.child_environment(1),
        )
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Question, kind: str) -> Verdict:
        try:
            line = ENCODER.encode(question)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise GrammarError(f"{kind} cannot be written as JSON: {error}") from None
        try:
            self._questions.write(line + b"\n")
            self._questions.flush()
        except BrokenPipeError:
            raise JudgeError(self._why_gone(kind)) from None
        if not _has_come(self._answers.fileno(), CLOCK_SECONDS):
            raise JudgeError(f"the judge of grammars did not answer within {CLOCK_SECONDS:g} s: try again later")
        answer = self._answers.readline()
        if answer:
            return VERDICT.decode(answer)
        raise JudgeError(self._why_gone(kind))

    def end(self) -> None:
        process = self._process
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(BrokenPipeError):  # of what it had not read
            self._questions.close()
        self._answers.close()
        process.wait()

    def _why_gone(self, kind: str) -> str:
        """What ended the process, in words; raises GrammarError where it was the constraint."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "the judge of grammars closed its output"
        if code == -signal.SIGPROF:
            raise GrammarError(f"{kind} takes more than {CPU_SECONDS:g} s of processor time: make it simpler")
        if code < 0:
            most = f"{MEMORY_BYTES >> 20} MiB of memory"
            raise GrammarError(f"{kind} takes more than {most}, or is more than the library can bear: make it simpler")
        return f"the judge of grammars ended with code {code}"


def _has_come(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # takes any descriptor; select() only those below 1,024
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@functools.cache
def shared_judges() -> Judges:
    """The judges of this process, whichever engine asks them; they end with it."""
    judges = Judges()
    atexit.register(judges.close)
    return judges
