"""Which functions of the product each test calls, and how long it takes: so that a mistake meets those tests alone.

Measured by a run of each test file without any mistake, and kept in `.mutations` until the file or the product changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tools.mutate import forked
from tools.mutate.forked import TestRun, is_interpreted
from tools.mutate.mutation import ROOT, Mutation

FOLDER = ROOT / ".mutations"
# Their result is that of an earlier test, so it is not known who relies on them.
_REMEMBERS = ("cache", "lru_cache", "cached_property")
# A mistake that makes a test this many times slower than it was while measured, and as many seconds more, is found.
TIMES, SECONDS = 3, 20
# Test id -> its seconds, and the functions it called, each as "file: name".
Measured = dict[str, tuple[float, list[str]]]


class Called:
    """A pytest plugin: writes down the functions that each test and its fixtures call, on any thread."""

    def __init__(self, test_file: Path, file: Path) -> None:
        self._test_file, self._file = test_file, file
        self._now: set[CodeType] = set()
        self._of_fixture: dict[int, set[CodeType]] = {}
        self._measured: Measured = {}

    def pytest_sessionstart(self) -> None:
        # Interpreted kernels are not the functions that were written, and would take minutes.
        if is_interpreted(self._test_file):
            return
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        before, self._now = self._now, set()
        result = yield
        self._of_fixture.setdefault(id(fixturedef), set()).update(self._now)
        before |= self._now
        self._now = before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        start, self._now = time.perf_counter(), set()
        result = yield
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                self._now |= self._of_fixture.get(id(definition), set())
        called = self._now.copy()  # other threads may still add to it
        names = sorted({f"{code.co_filename.split('/src/')[1]}: {code.co_name}" for code in called})
        self._measured[item.nodeid] = (time.perf_counter() - start, names)
        return result

    def pytest_sessionfinish(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._measured))

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "/src/atom_" in frame.f_code.co_filename:
            self._now.add(frame.f_code)


class Only:
    """A pytest plugin: collects some tests, the quickest first, and ends the process if one takes far too long.

    Args:
        seconds: how long each test that is collected takes, by its id.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self._seconds]
        items[:] = sorted(chosen, key=lambda item: self._seconds[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        signal.setitimer(signal.ITIMER_REAL, TIMES * self._seconds[item.nodeid] + SECONDS)
        result = yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        return result


def measure(test_files: Sequence[Path]) -> dict[Path, Measured]:
    """The measurements of each test file; one after the other, so that the seconds are those of a quiet machine."""
    return {file: _measured(file) for file in test_files}


def tests_for(mutation: Mutation, measured: dict[Path, Measured]) -> list[tuple[Path, dict[str, float]]]:
    """Files of tests that could find a mistake, the quickest first; of each the ids and seconds of those tests.

    They are the tests that call its function. Code that runs at import, or whose result is kept for later tests, may
    matter to any test of the files in which something of its file is called; where nothing is, to all tests.
    """
    function = _function_of(mutation)
    found = {
        file: {name: test for name, test in tests.items() if function in test[1]} for file, tests in measured.items()
    }
    if not any(found.values()):
        found = {file: tests for file, tests in measured.items() if _calls_any(tests, mutation.file)} or measured
    # What interpreted kernels call is not measured.
    found = found | {file: tests for file, tests in measured.items() if is_interpreted(file)}
    chosen = [(file, {name: test[0] for name, test in tests.items()}) for file, tests in found.items() if tests]
    return sorted(chosen, key=lambda entry: sum(entry[1].values()))


def _function_of(mutation: Mutation) -> str | None:
    node = mutation.enclosing
    if node is None or isinstance(node, ast.ClassDef) or any(_remembers(part) for part in node.decorator_list):
        return None
    return f"{mutation.file}: {node.name}"


def _calls_any(tests: Measured, source: str) -> bool:
    return any(call.startswith(f"{source}: ") for _, calls in tests.values() for call in calls)


def _remembers(decorator: ast.expr) -> bool:
    return any(getattr(part, "id", getattr(part, "attr", "")) in _REMEMBERS for part in ast.walk(decorator))


def _measured(file: Path) -> Measured:
    name = file.relative_to(ROOT).as_posix()
    kept = FOLDER / "calls" / (hashlib.sha256(_state(file)).hexdigest() + ".json")
    if not kept.exists():
        run = TestRun([name], plugin=Called(file, kept))
        while not run.has_ended():
            time.sleep(0.1)
        if run.status != 0:
            kept.unlink(missing_ok=True)
            raise RuntimeError(f"{name} fails without any mistake (pytest's status is {run.status}): mend that first")
        print(f"  measured {name}: {run.seconds:.1f} s", flush=True)
    return json.loads(kept.read_text())


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
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in [ROOT / "conftest.py", Path(forked.__file__), *files])
    ).digest()
