"""Which tests a mistake meets: those that call its function, by what was measured."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from tools.mutate.forked import is_interpreted
from tools.mutate.measuring import Measured
from tools.mutate.mutation import Mutation

# Their result is that of an earlier test, so it is not known who relies on them.
_REMEMBERS = ("cache", "lru_cache", "cached_property")
# What importing a file of tests and building its fixtures takes, roughly.
_SECONDS_OF_A_FILE = 2.0
# Files of tests, each with the ids and seconds of those that are chosen.
Chosen = list[tuple[Path, dict[str, float]]]


def candidates(mutation: Mutation, measured: Mapping[Path, Measured], *, may_guess: bool = True) -> Chosen:
    """Files of tests that could find a mistake, the quickest first; of each the ids and seconds of those tests.

    They are the tests that call its function. Code that runs at import, or whose result is kept for later tests, may
    matter to any test of the files in which something of its file is called; where nothing is, to all tests, if
    `may_guess`.
    """
    function = _function_of(mutation)
    found = {
        file: {name: test for name, test in tests.items() if function in test[1]} for file, tests in measured.items()
    }
    if not any(found.values()):
        found = {file: tests for file, tests in measured.items() if _calls_any(tests, mutation.file)}
    if not found and may_guess:
        found = dict(measured)
    if may_guess:  # what interpreted kernels call is not measured
        found |= {file: tests for file, tests in measured.items() if is_interpreted(file)}
    chosen = [(file, {name: test[0] for name, test in tests.items()}) for file, tests in found.items() if tests]
    return sorted(chosen, key=lambda entry: sum(entry[1].values()))


def quickest(chosen: Chosen, *, limit: float) -> Chosen:
    """The quickest of these tests, `limit` seconds in all; a file that is begun takes two more."""
    cheap: dict[Path, dict[str, float]] = {file: {} for file, _ in chosen}
    for seconds, name, file in sorted(
        (seconds, name, file) for file, tests in chosen for name, seconds in tests.items()
    ):
        limit -= seconds + (0 if cheap[file] else _SECONDS_OF_A_FILE)
        if limit < 0:
            break
        cheap[file][name] = seconds
    return [(file, tests) for file, tests in cheap.items() if tests]


def _function_of(mutation: Mutation) -> str | None:
    node = mutation.enclosing
    if node is None or isinstance(node, ast.ClassDef) or any(_remembers(part) for part in node.decorator_list):
        return None
    return f"{mutation.file}: {node.name}"


def _calls_any(tests: Measured, source: str) -> bool:
    return any(call.startswith(f"{source}: ") for _, calls in tests.values() for call in calls)


def _remembers(decorator: ast.expr) -> bool:
    return any(getattr(part, "id", getattr(part, "attr", "")) in _REMEMBERS for part in ast.walk(decorator))
