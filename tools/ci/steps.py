"""A step of continuous integration: a command, and what became of the tests that it ran."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """A command of a run.

    Attributes:
        name: how the summary calls it.
        command: its words. A step of tests gets `--verdicts FILE` added.
        tests: whether it runs pytest.
        minutes: the command is killed after so many.
        may_be_cut: tests that are not begun when the time of the whole run is over are left out.
    """

    name: str
    command: tuple[str, ...]
    tests: bool = False
    minutes: float = 45
    may_be_cut: bool = False


@dataclass(frozen=True)
class Failure:
    """A test that failed: its id, the line of its assertion, and the whole text."""

    test_id: str
    line: str
    text: str


@dataclass(frozen=True)
class StepResult:
    """What became of a step.

    Attributes:
        seconds: what it took.
        failures: the tests that failed, each with its first failure.
        not_begun: how many of the skipped were cut.
        budget: a line for each part of the tests that has a budget of time.
        trouble: why the step failed where no test did.
    """

    step: Step
    seconds: float
    passed: int = 0
    skipped: int = 0
    not_begun: int = 0
    failures: list[Failure] = field(default_factory=list)
    budget: list[str] = field(default_factory=list)
    trouble: str | None = None


# pytest's exit statuses: all passed, some failed, none selected. Any other says that not all were run.
_ALL_WERE_RUN = (0, 1, 5)


def run_step(step: Step, folder: Path, verdicts: Path, seconds_left: float) -> StepResult:
    """Run `step` in `folder`, its output going where ours goes; `verdicts` is a file for what became of its tests."""
    verdicts.unlink(missing_ok=True)
    command = [*step.command, "--verdicts", str(verdicts)] if step.tests else [*step.command]
    if step.may_be_cut:
        command += ["--stop-after", f"{max(0.0, seconds_left):.0f}"]
    started = time.monotonic()
    status = run_command(command, folder, minutes=step.minutes)
    seconds = time.monotonic() - started
    if status is None:
        return StepResult(step, seconds, trouble=f"was killed after {step.minutes:g} minutes")
    if not step.tests:
        return StepResult(step, seconds, trouble=f"exit status {status}" if status else None)
    if not verdicts.exists():
        return StepResult(step, seconds, trouble=f"exit status {status}, and pytest said nothing of the tests")
    return _read(step, seconds, json.loads(verdicts.read_text()), status)


def run_command(command: Sequence[str], folder: Path, *, minutes: float) -> int | None:
    """The exit status; None where the command took longer. Nothing that it started is left running."""
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as process:
        try:
            return process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_group(process.pid)


def _read(step: Step, seconds: float, found: dict[str, Any], status: int) -> StepResult:
    failures = [Failure(test_id, **said) for test_id, said in found["failures"].items()]
    trouble = None
    if found["exit_status"] not in _ALL_WERE_RUN:
        trouble = f"pytest's exit status {found['exit_status']}: not all tests were run"
    elif status and not failures:
        trouble = f"exit status {status} although no test failed"
    counts = found["passed"], found["skipped"], found["not_begun"]
    return StepResult(step, seconds, *counts, failures, found["budget"], trouble)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # raised where nothing of it is left
        os.killpg(group, signal.SIGKILL)
