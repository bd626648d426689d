"""Tests in a forked process: torch and pytest are imported once, the product's modules anew in each."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import linecache
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tools.mutate.mutation import ROOT, Mutation
from tools.mutate.settings import hide_gpus, interpret_triton, use_one_thread

_PRODUCT = ("atom_kernels", "atom_models", "atom_core", "atom_server", "atom_vllm", "atom")
# Slow to import, and nothing that a mistake could be in.
_IMPORTED_ONCE = (
    "numpy",
    "pytest",
    "hypothesis",
    "torch",
    "safetensors.torch",
    "transformers.generation",
    "transformers.models.auto.modeling_auto",
    "tokenizers",
    "httpx",
    "openai.resources",
    "pydantic",
    "uvicorn",
)
_T = TypeVar("_T")
# Exit codes of pytest: all tests passed, or there are none; and some failed.
PASSED, SOME_FAILED = (0, 4, 5), 1
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "--hypothesis-profile=mutate")


def is_interpreted(test_file: Path) -> bool:
    """Whether the tests run Triton kernels in Triton's interpreter."""
    return test_file.parent.name.startswith("triton_")


def prepare() -> None:
    """Import what all processes need; to be called once, before the first of them."""
    os.chdir(ROOT)
    os.nice(5)
    use_one_thread()
    hide_gpus()
    for name in _IMPORTED_ONCE:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    # The same examples each time, none kept, none made smaller.
    hypothesis = sys.modules["hypothesis"]
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutate", derandomize=True, database=None, phases=phases, deadline=None)
    early = [name for name in sys.modules if name.partition(".")[0] in (*_PRODUCT, "triton")]
    if early:
        raise RuntimeError(f"imported before a mistake, or Triton's interpreter, could be put in: {sorted(early)}")
    gc.freeze()


class TestRun:
    """A forked process that runs files of tests with a plugin, and with a mistake or without.

    Attributes:
        plugin: that it was started with.
        seconds: it has been running.
        status: once it has ended, 0 if all tests passed; 1 where it was stopped because it took more than its time.
    """

    __test__ = False

    def __init__(
        self, tests: Sequence[str], *, plugin: Any, mutation: Mutation | None = None, limit: float = 600.0
    ) -> None:
        self._start, self._limit, self.plugin = time.monotonic(), limit, plugin
        self.status: int | None = None
        # Runs that share pytest's folder would race for the next free number in it.
        self._folder = tempfile.mkdtemp(prefix="mutate-")
        self._process = os.fork()
        if self._process == 0:
            os._exit(_run_tests(tests, mutation, plugin, Path(self._folder, "tests")))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def has_ended(self) -> bool:
        """Looks, without waiting; ends what took too long, which is a mistake that was found."""
        done, status = os.waitpid(self._process, os.WNOHANG)
        if done:
            self.status = os.waitstatus_to_exitcode(status)
        elif self.seconds > self._limit:
            self.stop()
            self.status = 1
        if done:
            self._clean_up()
        return self.status is not None

    def stop(self) -> None:
        """End the process, and those that it started."""
        _end_group(self._process)
        os.waitpid(self._process, 0)
        self._clean_up()

    def _clean_up(self) -> None:
        _end_group(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)


def side_by_side(starts: Iterable[tuple[_T, Callable[[], TestRun]]], *, jobs: int) -> Iterator[tuple[_T, TestRun]]:
    """Starts runs, `jobs` at a time, and gives each with its name as it ends; ends all if whoever asks goes away."""
    running: dict[TestRun, _T] = {}
    waiting = iter(starts)
    try:
        while True:
            for name, start in itertools.islice(waiting, jobs - len(running)):
                running[start()] = name
            if not running:
                return
            for run in [run for run in running if run.has_ended()]:
                yield running.pop(run), run
            time.sleep(0.02)
    finally:
        for run in running:
            run.stop()


def _end_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _run_tests(tests: Sequence[str], mutation: Mutation | None, plugin: Any, folder: Path) -> int:
    os.setpgid(0, 0)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    if mutation is not None:
        sys.meta_path.insert(0, MutatedModule(mutation))
    # A mistake is found once; and by a file at a time: those after it are not even imported.
    options = [*_OPTIONS, f"--basetemp={folder}", *(["-x"] if mutation else [])]
    for interpreted, group in itertools.groupby(tests, key=lambda test: is_interpreted(Path(test))):
        run = partial(_run_in_turn, list(group), options, plugin, interpreted=interpreted)
        status = _in_a_process(run) if len({is_interpreted(Path(test)) for test in tests}) > 1 else run()
        if status:
            return status
    return 0


def _run_in_turn(tests: Sequence[str], options: Sequence[str], plugin: Any, *, interpreted: bool) -> int:
    import pytest

    if interpreted:
        interpret_triton()
    statuses = (int(pytest.main([*options, test], plugins=[plugin])) for test in tests)
    return next((status for status in statuses if status not in PASSED), 0)


def _in_a_process(run: Callable[[], int]) -> int:
    """Triton is interpreted for a whole process: other tests would see kernels where they expect none, and fail."""
    process = os.fork()
    if process == 0:
        os._exit(run())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


class MutatedModule(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Loads one module from a changed source."""

    def __init__(self, mutation: Mutation) -> None:
        super().__init__(
            mutation.file.removesuffix(".py").removesuffix("/__init__").replace("/", "."), str(mutation.path)
        )
        self._source = mutation.apply()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: Any) -> None:
        # Triton's interpreter and torch's compiler read sources again: they shall see this one.
        lines = self._source.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self._source), None, lines, self.path)
        super().exec_module(module)

    def get_data(self, path: str) -> bytes:
        return self._source.encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("so that no compiled file is read or written")
