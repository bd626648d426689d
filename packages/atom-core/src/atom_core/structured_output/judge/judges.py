"""`Judges`: asks processes that can be killed whether constraints can be followed."""

from __future__ import annotations

import atexit
import functools

from atom_core.limited_process import LimitedProcesses, Limits, TooMuchError, UnansweredError
from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.choice import BackendSetting
from atom_core.structured_output.constraints.grammar import GrammarError, kind_of
from atom_core.structured_output.judge.limits import LIMITS
from atom_core.structured_output.judge.messages import ENCODER, VERDICT, Question


class JudgeError(RuntimeError):
    """A judge could not be asked; nothing is known against the constraint."""


class Judges:
    """Processes that are started when they are needed; any thread may ask, each asks one of its own.

    Args:
        limits: what judging one constraint may take.

    Attributes:
        processes: the judges.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.processes = LimitedProcesses("atom_core.structured_output.judge.judge_process", limits)

    def check(
        self, params: StructuredOutputParams, setting: BackendSetting = "auto", *, clock_seconds: float | None = None
    ) -> None:
        """Wait for the verdict on a constraint that passed `check_limits`.

        Args:
            clock_seconds: how long to wait for it; None is as long as the limits say.

        Raises:
            GrammarError: it is not sound, or takes more processor time or memory than a constraint may.
            JudgeError: the judge did not answer, for reasons of its own.
        """
        kind = kind_of(params)
        try:
            question = ENCODER.encode(Question(params, setting))
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise GrammarError(f"{kind} cannot be written as JSON: {error}") from None
        try:
            verdict = VERDICT.decode(self.processes.ask(question, clock_seconds))
        except TooMuchError as error:
            raise GrammarError(f"{kind} {error}: make it simpler") from None
        except UnansweredError as error:
            raise JudgeError(f"the judge of grammars {error}") from None
        if verdict.error is not None:
            raise GrammarError(verdict.error)

    def close(self) -> None:
        """End those that wait for questions; one that is at work ends with its work or at its limit."""
        self.processes.close()


@functools.cache
def shared_judges() -> Judges:
    """The judges of this process, whichever engine asks them; they end with it."""
    judges = Judges()
    atexit.register(judges.close)
    return judges
