"""`LimitedProcesses`: processes that can be killed, each of which answers one question at a time."""

from __future__ import annotations

import threading

from atom_core.limited_process.limits import Limits
from atom_core.limited_process.process import LimitedProcess


class LimitedProcesses:
    """Processes that are started when they are needed; any thread may ask, each asks one of its own.

    Args:
        module: the main module of each, which calls `answer_questions`.
        limits: the limits of each answer.
        arguments: what their command lines have behind the limits.

    Attributes:
        idle: processes that wait for a question.
        num_started: processes so far.
    """

    def __init__(self, module: str, limits: Limits, *arguments: str) -> None:
        self._lock = threading.Lock()
        self._module, self._limits, self._arguments = module, limits, arguments
        self.idle: list[LimitedProcess] = []
        self.num_started = 0
        self._is_closed = False

    def ask(self, question: bytes, clock_seconds: float | None = None) -> bytes:
        """Wait for the answer, for `clock_seconds` of the limits unless others are given.

        Raises:
            TooMuchError: the question takes more than the limits allow.
            UnansweredError: there is no answer, for reasons that are not the question's.
        """
        process = self._take()
        try:
            answer = process.ask(question, self._limits.clock_seconds if clock_seconds is None else clock_seconds)
        except BaseException:
            process.end()
            raise
        with self._lock:
            stays = not (process.is_last or self._is_closed)
            if stays:
                self.idle.append(process)
        if not stays:
            process.end()
        return answer

    def close(self) -> None:
        """End those that wait for questions; one that is at work ends with its work or at its limit."""
        with self._lock:
            self._is_closed = True
            idle, self.idle = self.idle, []
        for process in idle:
            process.end()

    def _take(self) -> LimitedProcess:
        with self._lock:
            while self.idle:
                process = self.idle.pop()
                if process.is_alive:
                    return process
                process.end()
            self.num_started += 1
        return LimitedProcess(self._module, self._limits, *self._arguments)
