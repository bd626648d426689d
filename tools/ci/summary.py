"""The last lines of a run: what to look at first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.ci.repeating import Repeated
from tools.ci.steps import StepResult

_TEXT_WIDTH = 160


def has_failed(results: Sequence[StepResult], repeated: Repeated) -> bool:
    """Whether the run is red."""
    return bool(repeated.failed) or any(result.trouble for result in results)


def summary(results: Sequence[StepResult], repeated: Repeated) -> Iterator[str]:
    """The time of each step, tests that passed when repeated, tests that failed, and all counts in the last line."""
    yield f"\n{' summary ':=^100}"
    for result in results:
        yield f"{result.step.name:12} {result.seconds / 60:5.1f} min  {_outcome(result)}"
        yield from (f"    {line}" for line in result.budget)
    for failure in repeated.flaky:
        yield f"flaky   {failure.test_id}\n        {failure.line[:_TEXT_WIDTH]}"
    if repeated.flaky:
        yield "        Flaky tests passed alone: each is a defect to mend. First failures: .pytest_cache/flaky.txt"
    for failure in repeated.failed:
        yield f"failed  {failure.test_id}\n        {failure.line[:_TEXT_WIDTH]}"
    if not repeated.were_run:
        yield "        So many failed that none was repeated."
    passed = sum(result.passed for result in results) + len(repeated.flaky)
    failed = len(repeated.failed) + sum(result.trouble is not None for result in results)
    yield f"ci: {passed} passed, {failed} failed, {sum(result.skipped for result in results)} skipped"


def _outcome(result: StepResult) -> str:
    said = f"{result.passed} passed, {len(result.failures)} failed, {result.skipped} skipped"
    parts = [said] if result.step.tests else []
    if result.not_begun:
        parts.append(f"NOT BEGUN IN TIME: {result.not_begun} (`make {result.step.name}` runs them)")
    if result.trouble:
        parts.append(f"FAILED: {result.trouble}")
    return ", ".join(parts) or "passed"
