"""A run of continuous integration goes through all steps, repeats failed tests, and ends with what is wrong."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from source_tree import ROOT
from tools.ci.__main__ import STEPS, files_with, run
from tools.ci.repeating import MOST_REPEATED
from tools.ci.steps import Step

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "verdicts", "-p", "stop_after", "-c", "empty.ini")
PASSES_ALONE = """
    from pathlib import Path

    def test_flaky():
        was_run = Path("was-run")
        is_first = not was_run.exists()
        was_run.touch()
        assert not is_first, "only at first"
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for tests, whose pytest finds the plugins of ours."""
    (tmp_path / "empty.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def write(clone: Path, name: str, text: str) -> str:
    (clone / name).write_text(textwrap.dedent(text))
    return name


def pytest_step(name: str, **options) -> Step:
    return Step(name.removesuffix(".py"), (*PYTEST, name), tests=True, **options)


def exits(status: int) -> Step:
    return Step(f"exits-{status}", (sys.executable, "-c", f"raise SystemExit({status})"))


def test_a_run_whose_tests_pass_is_green(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_good.py", "def test_one(): pass\ndef test_two(): pass")
    assert run((exits(0), pytest_step(name)), clone, PYTEST) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ci: 2 passed, 0 failed, 0 skipped"


def test_a_step_that_fails_keeps_no_other_from_running(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_good.py", "def test_one(): pass")
    assert run((exits(3), pytest_step(name)), clone, PYTEST) == 1
    said = capsys.readouterr().out
    assert "FAILED: exit status 3" in said
    assert said.splitlines()[-1] == "ci: 1 passed, 1 failed, 0 skipped"


def test_what_fails_twice_fails_the_run_with_the_line_of_its_assertion(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_bad.py", "def test_sum(): assert 1 + 1 == 3\ndef test_other(): pass")
    assert run((pytest_step(name),), clone, PYTEST) == 1
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last[0] == "failed  test_bad.py::test_sum"
    assert "assert (1 + 1) == 3" in last[1]
    assert "test_bad.py:1" in last[1]
    assert last[2] == "ci: 1 passed, 1 failed, 0 skipped"


def test_what_passes_alone_is_shown_as_flaky_and_fails_nothing(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_now_and_then.py", PASSES_ALONE)
    assert run((pytest_step(name),), clone, PYTEST) == 0
    said = capsys.readouterr().out
    assert "flaky   test_now_and_then.py::test_flaky" in said
    assert said.splitlines()[-1] == "ci: 1 passed, 0 failed, 0 skipped"
    assert "only at first" in (clone / ".pytest_cache" / "flaky.txt").read_text()


def test_failed_tests_are_repeated_after_all_steps(clone: Path):
    first = write(clone, "test_early.py", PASSES_ALONE)
    second = write(
        clone,
        "test_late.py",
        """
        from pathlib import Path

        def test_no_test_was_repeated_before():
            Path("late").touch()
            assert Path("was-run").exists()
        """,
    )
    check = Step("check", (sys.executable, "-c", "import pathlib; assert not pathlib.Path('late').exists()"))
    assert run((check, pytest_step(first), pytest_step(second)), clone, PYTEST) == 0


def test_a_file_that_cannot_be_imported_fails_the_run(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_broken.py", "import no_such_module")
    assert run((pytest_step(name),), clone, PYTEST) == 1
    assert "failed  test_broken.py" in capsys.readouterr().out


def test_a_step_that_ends_without_a_word_fails_the_run(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_exits.py", "import os\ndef test_one(): os._exit(0)")
    assert run((pytest_step(name),), clone, PYTEST) == 1
    assert "pytest said nothing of the tests" in capsys.readouterr().out


def test_a_step_that_does_not_end_is_killed_with_all_that_it_started(clone: Path, capsys: pytest.CaptureFixture[str]):
    name = write(clone, "test_hangs.py", "import threading\ndef test_one(): threading.Event().wait()")
    assert run((pytest_step(name, minutes=0.05),), clone, PYTEST) == 1
    assert "was killed after 0.05 minutes" in capsys.readouterr().out


def test_when_the_time_is_over_a_step_that_may_be_cut_begins_no_test_and_says_so(
    clone: Path, capsys: pytest.CaptureFixture[str]
):
    name = write(clone, "test_bad.py", "def test_one(): assert False")
    assert run((pytest_step(name, may_be_cut=True),), clone, PYTEST, minutes=0) == 0
    said = capsys.readouterr().out
    assert "NOT BEGUN IN TIME: 1" in said
    assert said.splitlines()[-1] == "ci: 0 passed, 0 failed, 1 skipped"
    assert run((pytest_step(name),), clone, PYTEST, minutes=0) == 1


def test_more_failures_than_accidents_explain_are_not_repeated(clone: Path, capsys: pytest.CaptureFixture[str]):
    lines = [f"def test_{number}(): assert False" for number in range(MOST_REPEATED + 1)]
    name = write(clone, "test_many.py", "\n".join(lines))
    assert run((pytest_step(name),), clone, PYTEST) == 1
    said = capsys.readouterr().out
    assert "again, alone" not in said
    assert said.splitlines()[-1] == f"ci: 0 passed, {MOST_REPEATED + 1} failed, 0 skipped"


def test_continuous_integration_runs_what_people_run():
    hatch = [step.command[2] for step in STEPS]
    assert hatch == ["check", "test", "test-timing", "test-slow"]
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make ci")


def test_steps_of_marked_tests_have_the_pages_and_leave_interpreted_ones_to_processes_of_their_own():
    found = {path.parent.name for path in files_with("slow")}
    assert {"tests", "docs"} <= found
    assert not any(name.startswith("triton_") for name in found)
