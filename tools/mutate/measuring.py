"""Which functions of the product each test calls, and how long it takes: so that a mistake meets those tests alone.

Measured by a run of each test file without any mistake, and kept in `.mutations` until the file or the product changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tools.mutate import calls, forked, settings
from tools.mutate.calls import Calls
from tools.mutate.forked import PASSED, SOME_FAILED, TestRun, is_interpreted, side_by_side
from tools.mutate.mutation import ROOT

FOLDER = ROOT / ".mutations"
# A mistake that makes a test this many times slower than it was while measured, and as many seconds more, is found.
TIMES, SECONDS = 3, 20
# Test id -> its seconds, and the functions it called, each as "file: qualified name".
Measured = dict[str, tuple[float, list[str]]]


class Called:
    """A pytest plugin: writes down the functions that each test and its fixtures call, on any thread."""

    def __init__(self, test_file: Path, file: Path) -> None:
        self._test_file, self._file = test_file, file
        self._calls = Calls()
        self._of_fixture: dict[int, set[CodeType]] = {}
        self._measured: Measured = {}
        self._failed: list[str] = []

    def pytest_sessionstart(self) -> None:
        # Interpreted kernels are not the functions that were written, and would take minutes.
        if not is_interpreted(self._test_file):
            self._calls.watch()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        before = self._calls.begin()
        result = yield
        called = self._calls.begin()
        self._of_fixture.setdefault(id(fixturedef), set()).update(called)
        self._calls.now |= before | called
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        self._calls.begin()
        result = yield
        called = self._calls.begin()
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                called |= self._of_fixture.get(id(definition), set())
        names = sorted({f"{code.co_filename.split('/src/')[1]}: {code.co_qualname}" for code in called})
        self._measured[item.nodeid] = (time.perf_counter() - start, names)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._calls.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"tests": self._measured, "failed": self._failed}))


class Only:
    """A pytest plugin: collects some tests, the quickest first, and ends the process if one takes far too long.

    Args:
        seconds: how long each test that is collected takes, by its id.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self._last = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the forked process writes, its parent reads

    @property
    def last(self) -> str:
        """The id of the last test that was begun, or of the file that could not be imported: where a run ended."""
        return os.pread(self._last.fileno(), 10_000, 0).decode()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self._seconds]
        items[:] = sorted(chosen, key=lambda item: self._seconds[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        self._note(item.nodeid)
        signal.setitimer(signal.ITIMER_REAL, TIMES * self._seconds[item.nodeid] + SECONDS)
        result = yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        return result

    def _note(self, name: str) -> None:
        os.ftruncate(self._last.fileno(), 0)
        os.pwrite(self._last.fileno(), name.encode(), 0)


def measure(test_files: Sequence[Path], *, jobs: int, skip_failing: bool = False) -> dict[Path, Measured]:
    """The measurements of each test file.

    Tests that fail without any mistake are left out and named if `skip_failing`, else they end it all.
    """
    kept = {file: FOLDER / "calls" / (hashlib.sha256(_state(file)).hexdigest() + ".json") for file in test_files}
    new = [file for file in test_files if not kept[file].exists()]
    starts = ((file, partial(TestRun, [_name(file)], plugin=Called(file, kept[file]))) for file in new)
    for file, run in side_by_side(starts, jobs=jobs):
        print(f"  measured {_name(file)}: {run.seconds:.1f} s", flush=True)
        if run.status not in (*PASSED, SOME_FAILED):
            kept[file].unlink(missing_ok=True)
    return {file: read(file, kept[file], skip_failing=skip_failing) for file in test_files}


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def read(file: Path, kept: Path, *, skip_failing: bool) -> Measured:
    """What was kept of the tests that passed; pytest could not even begin with a file of which nothing is kept."""
    found = json.loads(kept.read_text()) if kept.exists() else {"tests": {}, "failed": [_name(file)]}
    failed = sorted(set(found["failed"]))
    if failed and not skip_failing:
        kept.unlink(missing_ok=True)
        raise RuntimeError(f"without any mistake these fail: {', '.join(failed)}: mend them first, or --skip-failing")
    for name in failed:
        print(f"  left out, since it fails without any mistake: {name}", flush=True)
    return {name: test for name, test in found["tests"].items() if name not in failed}


def _state(file: Path) -> bytes:
    return _product() + file.relative_to(ROOT).as_posix().encode() + file.read_bytes()


@cache
def _product() -> bytes:
    """A digest of the sources, of what tests share, and of how they are run."""
    patterns = (
        "packages/*/src/**/*.py",
        "packages/*/src/**/*.c*",
        "packages/*/tests/**/conftest.py",
        "tests/support/**/*.py",
    )
    # Bytecode comes and goes, and its names have a ".c" in them.
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.suffix != ".pyc")
    ours = [Path(str(module.__file__)) for module in (forked, calls, settings)]
    read = (path.read_bytes() for path in [ROOT / "conftest.py", Path(__file__), *ours, *files])
    return hashlib.sha256(b"".join(read)).digest()
