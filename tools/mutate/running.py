"""Tries mistakes, some at a time, each in a process of its own."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.mutate.forked import TestRun
from tools.mutate.measuring import SECONDS, TIMES, Measured, Only, tests_for
from tools.mutate.mutation import ROOT, Mutation


def try_all(
    mutations: Sequence[Mutation],
    tests_of_file: Mapping[Path, Sequence[Path]],
    measured: Mapping[Path, Measured],
    *,
    jobs: int,
) -> list[Mutation]:
    """Those that no test found, in order."""
    start, waiting, running, survivors = time.monotonic(), list(mutations), {}, []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutation = waiting.pop(0)
                tests = {file: measured[file] for file in tests_of_file[mutation.path]}
                running[mutation] = _start(mutation, tests)
            for mutation, run in list(running.items()):
                if run.has_ended():
                    del running[mutation]
                    if run.status == 0:
                        survivors.append(mutation)
                        print(f"\rSURVIVED {mutation}", flush=True)
                    done = len(mutations) - len(waiting) - len(running)
                    _show(done, len(mutations), time.monotonic() - start)
            time.sleep(0.02)
    finally:
        for run in running.values():
            run.stop()
    print(file=sys.stderr)
    return sorted(survivors, key=mutations.index)


def _start(mutation: Mutation, measured: dict[Path, Measured]) -> TestRun:
    ast.parse(mutation.apply())  # what is no program would be found by any test
    found = tests_for(mutation, measured)
    files = [file.relative_to(ROOT).as_posix() for file, _ in found]
    seconds = {name: seconds for _, tests in found for name, seconds in tests.items()}
    limit = TIMES * sum(seconds.values()) + 10 * SECONDS
    return TestRun(files, mutation=mutation, plugin=Only(seconds), limit=limit)


def _show(done: int, count: int, seconds: float) -> None:
    if sys.stderr.isatty() or done % 10 == 0 or done == count:
        end = "" if sys.stderr.isatty() else "\n"
        print(f"\r  {done}/{count} tried, {seconds:.0f} s", end=end, file=sys.stderr, flush=True)
