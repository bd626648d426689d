"""A judge: ``python -m atom_core.structured_output.judge.judge_process LIMITS``, started by `Judges`."""

from __future__ import annotations

import sys

from atom_core.limited_process.answering import answer_questions
from atom_core.limited_process.limits import Limits
from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.checking import check_grammar
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.judge.messages import ENCODER, QUESTION, Verdict


def main(limits: Limits) -> None:
    """Answer questions until there are no more."""
    check_grammar(StructuredOutputParams(regex="a"))  # what is imported and made once counts for nobody
    answer_questions(_verdict, limits)


def _verdict(question: bytes) -> bytes:
    return ENCODER.encode(Verdict(_error_of(question)))


def _error_of(question: bytes) -> str | None:
    asked = QUESTION.decode(question)
    try:
        check_grammar(asked.params, asked.setting)
    except GrammarError as error:
        return str(error)
    except MemoryError:
        return "takes too much memory"
    except BaseException as error:  # the library's panics are no Exceptions
        return f"cannot be followed: {type(error).__name__}"
    return None


if __name__ == "__main__":
    main(Limits.from_command_line(sys.argv[1]))
