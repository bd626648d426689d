"""A judge: ``python -m atom_core.structured_output.judge.judge_process``, started by `Judges`.

It ends with its standard input, and before that where a constraint takes more than its limits: the signal says which.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import BinaryIO

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.checking import check_grammar
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.judge.limits import CPU_SECONDS, KEPT_BYTES, MEMORY_BYTES
from atom_core.structured_output.judge.messages import ENCODER, QUESTION, Question, Verdict


def main() -> None:
    """Answer questions until there are no more."""
    # Signals reach the whole group: the parent drains first. Its end closes our standard input.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    answers = _own_output()
    check_grammar(StructuredOutputParams(regex="a"))  # what is imported and made once counts for nobody
    at_start = _address_bytes()
    _lower(resource.RLIMIT_AS, at_start + MEMORY_BYTES)
    while line := sys.stdin.buffer.readline():
        error = _judge(QUESTION.decode(line))
        verdict = Verdict(error, is_last=_address_bytes() - at_start > KEPT_BYTES)
        answers.write(ENCODER.encode(verdict) + b"\n")
        answers.flush()


def _judge(question: Question) -> str | None:
    # The default action of SIGPROF ends the process, also in the middle of a library's work.
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        check_grammar(question.params, question.setting)
    except GrammarError as error:
        return str(error)
    except MemoryError:
        return "takes too much memory"
    except BaseException as error:  # the library's panics are no Exceptions
        return f"cannot be followed: {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


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


if __name__ == "__main__":
    main()
