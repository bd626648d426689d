"""Failed tests once more, each alone in a fresh process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.ci.steps import Failure, run_command

# More failures than this are no accident, and need no second look to say so.
MOST_REPEATED = 12
MINUTES_ALONE = 10


@dataclass(frozen=True)
class Repeated:
    """Which tests failed again, and which passed alone, each with its first failure.

    `were_run` is False where there were too many to repeat: then all count as failed.
    """

    failed: Sequence[Failure]
    flaky: Sequence[Failure]
    were_run: bool = True


def repeat(failures: Sequence[Failure], folder: Path, pytest: Sequence[str]) -> Repeated:
    """Run each failed test again, one after the other, by the command `pytest` in `folder`."""
    if len(failures) > MOST_REPEATED:
        return Repeated(failures, (), were_run=False)
    passes = {failure.test_id: _passes_alone(failure.test_id, folder, pytest) for failure in failures}
    return Repeated(
        [failure for failure in failures if not passes[failure.test_id]],
        [failure for failure in failures if passes[failure.test_id]],
    )


def _passes_alone(test_id: str, folder: Path, pytest: Sequence[str]) -> bool:
    print(f"\nagain, alone: {test_id}", flush=True)
    return run_command([*pytest, test_id], folder, minutes=MINUTES_ALONE) == 0
