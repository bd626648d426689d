"""Run the checks and all tests, whatever fails first, and sum up: `python -m tools.ci`.

A test that failed is run again, alone, once everything else has ended. What fails twice fails the run; what passes
alone is shown as flaky, a defect to mend. On a slow machine the time ends before the last tests have begun: the summary
says how many. The exit status is 1 if any step or test failed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tools.ci.repeating import repeat
from tools.ci.steps import Step, run_step
from tools.ci.summary import has_failed, summary

ROOT = Path(__file__).resolve().parent.parent.parent
_HATCH = (".venv/bin/hatch", "run")
_SLOW = "slow and not timing and not by_hand"
_TIMING = "timing and not gpu and not by_hand"
# A run is to end in 25, of which it takes 4 to make the environment.
_MINUTES = 21


def files_with(marker: str) -> list[Path]:
    """The files of the pages' and the packages' tests that have the marker, but those for Triton's interpreter.

    That has processes of its own, and who names a file gets it, though its folder's conftest would leave it out.
    """
    files = [*sorted(ROOT.glob("tests/docs/test_*.py")), *sorted(ROOT.glob("packages/*/tests/**/test_*.py"))]
    return [
        file for file in files if not file.parent.name.startswith("triton_") and f"mark.{marker}" in file.read_text()
    ]


def _marked(name: str, marker: str, selection: str) -> Step:
    """A step of the tests with `marker`, in the files that have some: collecting all of them takes most of a minute."""
    paths = [str(file.relative_to(ROOT)) for file in files_with(marker)]
    return Step(name, (*_HATCH, name, *paths, "-m", selection), tests=True, may_be_cut=True)


STEPS = (
    Step("check", (*_HATCH, "check")),
    Step("test", (*_HATCH, "test", "packages", "tests"), tests=True),
    _marked("test-timing", "timing", _TIMING),
    # Those on the real default model too. What downloads packages takes minutes more and is run by hand.
    _marked("test-slow", "slow", _SLOW),
)


def run(steps: tuple[Step, ...], folder: Path, pytest: tuple[str, ...], minutes: float = _MINUTES) -> int:
    """Run `steps` in `folder`, repeat failed tests with the command `pytest`, print the summary; the exit status.

    After `minutes` the steps that may be cut begin no more tests.
    """
    end = time.monotonic() + 60 * minutes
    cache = folder / ".pytest_cache"
    cache.mkdir(exist_ok=True)
    results = [run_step(step, folder, cache / f"verdicts-{step.name}.json", end - time.monotonic()) for step in steps]
    repeated = repeat([failure for result in results for failure in result.failures], folder, pytest)
    (cache / "flaky.txt").write_text("\n\n".join(f"{each.test_id}\n{each.text}" for each in repeated.flaky))
    print("\n".join(summary(results, repeated)), flush=True)
    return int(has_failed(results, repeated))


if __name__ == "__main__":
    sys.exit(run(STEPS, ROOT, (*_HATCH, "test-alone")))
