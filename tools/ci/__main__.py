"""Run the checks and all tests, whatever fails first, and sum up: `python -m tools.ci`.

A test that failed is run again, alone, once everything else has ended. What fails twice fails the run; what passes
alone is shown as flaky, a defect to mend. The exit status is 1 if any step or test failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.ci.repeating import repeat
from tools.ci.steps import Step, run_step
from tools.ci.summary import has_failed, summary

ROOT = Path(__file__).resolve().parent.parent.parent
_HATCH = (".venv/bin/hatch", "run")
_SLOW = "slow and not timing and not by_hand"
_TIMING = "timing and not gpu and not by_hand"


def _files_with(marker: str, folder: str) -> list[str]:
    """The files of tests with `marker`. To look for such tests in all files takes as long as some of the steps."""
    files = sorted((ROOT / folder).glob("*/tests/**/test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if f"mark.{marker}" in file.read_text()]


STEPS = (
    Step("check", (*_HATCH, "check")),
    Step("test", (*_HATCH, "test", "packages", "tests"), tests=True),
    # Those on the real default model too. What downloads packages takes minutes more and is run by hand.
    Step("test-slow", (*_HATCH, "test-slow", *_files_with("slow", "packages"), "-m", _SLOW), tests=True),
    Step("test-timing", (*_HATCH, "test-timing", *_files_with("timing", "packages"), "-m", _TIMING), tests=True),
)


def run(steps: tuple[Step, ...], folder: Path, pytest: tuple[str, ...]) -> int:
    """Run `steps` in `folder`, repeat failed tests with the command `pytest`, print the summary; the exit status."""
    cache = folder / ".pytest_cache"
    cache.mkdir(exist_ok=True)
    results = [run_step(step, folder, cache / f"verdicts-{step.name}.json") for step in steps]
    repeated = repeat([failure for result in results for failure in result.failures], folder, pytest)
    (cache / "flaky.txt").write_text("\n\n".join(f"{each.test_id}\n{each.text}" for each in repeated.flaky))
    print("\n".join(summary(results, repeated)), flush=True)
    return int(has_failed(results, repeated))


if __name__ == "__main__":
    sys.exit(run(STEPS, ROOT, (*_HATCH, "test-alone")))
