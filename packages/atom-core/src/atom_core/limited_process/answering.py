"""`answer_questions`: the life of a process that answers questions within `Limits`.

It ends with its standard input, and before that where an answer takes more than its limits: the signal says which.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from atom_core.limited_process.frames import read_frame, write_frame
from atom_core.limited_process.limits import Limits


def answer_questions(answer: Callable[[bytes], bytes], limits: Limits) -> None:
    """Answer the questions of standard input on standard output until there are no more.

    Args:
        answer: what it needs once should have been made before this; that counts for nobody. A MemoryError ends the
            process as a signal would.
    """
    # Signals reach the whole group: the parent drains first. Its end closes our standard input.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    answers = _own_output()
    at_start = _address_bytes()
    _lower(resource.RLIMIT_AS, at_start + limits.memory_bytes)
    try:
        while (question := read_frame(sys.stdin.buffer)) is not None:
            message = _timed(answer, question, limits.cpu_seconds)
            is_last = _address_bytes() - at_start > limits.kept_bytes
            write_frame(answers, message, mark=is_last)
            del question, message  # before the next one comes
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


def _timed(answer: Callable[[bytes], bytes], question: bytes, cpu_seconds: float) -> bytes:
    # The default action of SIGPROF ends the process, also in the middle of a library's work.
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        return answer(question)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _lower(limit: int, value: int) -> None:
    """Set a limit for good, no higher than it was."""
    _, most = resource.getrlimit(limit)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


def _own_output() -> BinaryIO:
    """Standard output, which nothing else writes to from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "wb")


def _address_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
