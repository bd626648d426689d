"""Tries mistakes, some at a time, each in a process of its own."""

from __future__ import annotations

import ast
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.mutate.choosing import candidates, within
from tools.mutate.forked import TestRun, side_by_side
from tools.mutate.measuring import SECONDS, TIMES, Measured, Only
from tools.mutate.mutation import ROOT, Mutation


@dataclass(frozen=True)
class Trial:
    """What came of a mistake.

    Attributes:
        found_by: the test that failed, or the file that could not be imported; None if all tests passed.
    """

    mutation: Mutation
    found_by: str | None
    seconds: float


def try_all(
    mutations: Sequence[Mutation],
    tests_of_file: Mapping[Path, Sequence[Path]],
    measured: Mapping[Path, Measured],
    *,
    jobs: int,
    longest: float,
    deadline: float = float("inf"),
) -> list[Trial]:
    """Tries each by the tests of the files that its own names, then by others that were measured.

    Args:
        longest: seconds of tests of its own files that a mistake meets, and of others as many.
        deadline: when by `time.monotonic` no other is begun any more.
    """
    begin, trials = time.monotonic(), []
    starts = ((edit, partial(_start, edit, tests_of_file[edit.path], measured, longest)) for edit in mutations)
    in_time = itertools.takewhile(lambda _: time.monotonic() < deadline, starts)
    for mutation, run in side_by_side(in_time, jobs=jobs):
        trials.append(Trial(mutation, None if run.status == 0 else run.plugin.last, run.seconds))
        if run.status == 0:
            print(f"\rSURVIVED {mutation}", flush=True)
        _show(len(trials), len(mutations), time.monotonic() - begin)
    print(file=sys.stderr)
    return trials


def _start(mutation: Mutation, named: Sequence[Path], measured: Mapping[Path, Measured], longest: float) -> TestRun:
    ast.parse(mutation.apply())  # what is no program would be found by any test
    others = {file: tests for file, tests in measured.items() if file not in named}
    chosen = within(candidates(mutation, {file: measured[file] for file in named}), limit=longest)
    chosen += within(candidates(mutation, others, may_guess=False), limit=longest)
    files = [file.relative_to(ROOT).as_posix() for file, _ in chosen]
    seconds = {name: test for _, tests in chosen for name, test in tests.items()}
    limit = TIMES * sum(seconds.values()) + 10 * SECONDS
    return TestRun(files, mutation=mutation, plugin=Only(seconds), limit=limit)


def _show(done: int, count: int, seconds: float) -> None:
    if sys.stderr.isatty() or done % 10 == 0 or done == count:
        end = "" if sys.stderr.isatty() else "\n"
        print(f"\r  {done}/{count} tried, {seconds:.0f} s", end=end, file=sys.stderr, flush=True)
