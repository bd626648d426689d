"""Which tests a mistake meets, and in which order: those that call its function, the nearest first."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from pathlib import Path

from tools.mutate.forked import is_interpreted
from tools.mutate.measuring import Measured
from tools.mutate.mutation import ROOT, Mutation, Scope

# Their result is that of an earlier test, so it is not known who relies on them.
_REMEMBERS = ("cache", "lru_cache", "cached_property")
# What importing a file of tests and building its fixtures takes, roughly.
SECONDS_OF_A_FILE = 1.0
# Each file of tests gets this part of a mistake's seconds first: all near ones are met before the slow tests of one.
_FIRST_SHARE = 0.1
# Files of tests, each with the ids and seconds of those that are chosen.
Chosen = list[tuple[Path, dict[str, float]]]


def candidates(mutation: Mutation, measured: Mapping[Path, Measured], *, may_guess: bool = True) -> Chosen:
    """Files of tests that could find a mistake, the nearest first; of each the ids and seconds of those tests.

    They are the tests that call its function. Code that runs at import, or whose result is kept for later tests, is met
    by those that call a function which reads its name, and by the files of tests that have the name in them. A default
    of a parameter is met by the latter too. Where there are none, a mistake is met by the files in which something of
    its file is called; where nothing is, by all tests, if `may_guess`. The nearest tests are those that call the fewest
    functions beside it; to a default it is the table of its package's.
    """
    function, name = _function_of(mutation), _name_of(mutation)
    callees = {function} if function is not None else readers(mutation.file, name) if name else set[str]()
    found = _that_call(measured, callees)
    if name and (function is None or _is_in_signature(mutation)):
        found |= {file: tests for file, tests in measured.items() if _has_word(file, name)}
    if not found:
        found = {file: tests for file, tests in measured.items() if _calls_any(tests, mutation.file)}
    if not found and may_guess:
        found = dict(measured)
    if may_guess:  # what interpreted kernels call is not measured
        found |= {file: tests for file, tests in measured.items() if is_interpreted(file)}
    is_kernel = "triton" in mutation.file

    def distance(file: Path) -> tuple[bool, bool, int, Path]:
        is_table = mutation.kind == "default" and file.name.startswith("test_defaults_of_")
        return not is_table, is_interpreted(file) != is_kernel, _fewest_calls(found[file]), file

    ordered = sorted(found, key=distance)
    return [(file, {name: test[0] for name, test in found[file].items()}) for file in ordered]


def within(chosen: Chosen, *, limit: float) -> Chosen:
    """Tests of `limit` seconds in all: first a share of each file, then more of the nearest; the quickest of a file.

    The nearest file is taken whole, however long it takes. A file that is begun takes a second more.
    """
    left, taken = limit, {file: dict[str, float]() for file, _ in chosen}
    for share in (_FIRST_SHARE * limit, limit):
        for place, (file, tests) in enumerate(chosen):
            ours = taken[file]
            for name in sorted(tests.keys() - ours.keys(), key=lambda name: (tests[name], name)):
                cost = tests[name] + (0 if ours else SECONDS_OF_A_FILE)
                if place and (cost > left or sum(ours.values()) + tests[name] > share):
                    break
                ours[name], left = tests[name], left - cost
    return [(file, tests) for file, tests in taken.items() if tests]


@functools.cache
def readers(file: str, name: str) -> frozenset[str]:
    """The functions of the product that read a name which `file` gives; of a private name those of the file itself."""
    found = _by_word().get(name, frozenset())
    return frozenset(function for function in found if not name.startswith("_") or function.startswith(f"{file}: "))


def _function_of(mutation: Mutation) -> str | None:
    scopes = mutation.scopes
    if not scopes or isinstance(scopes[-1], ast.ClassDef) or any(_remembers(scope) for scope in scopes):
        return None
    return f"{mutation.file}: {_qualified(scopes)}"


def _name_of(mutation: Mutation) -> str:
    """What is bound by the statement, class or function that a mistake is in; "" if nothing is."""
    names = [scope.name for scope in mutation.scopes if scope.name != "__init__"]
    if names:
        return names[-1]
    return next((name for first, last, name in _bound(mutation.path) if first <= mutation.line <= last), "")


def _is_in_signature(mutation: Mutation) -> bool:
    return bool(mutation.scopes) and mutation.line < mutation.scopes[-1].body[0].lineno


@functools.cache
def _bound(path: Path) -> list[tuple[int, int, str]]:
    """The lines, first and last, of assignments outside of functions and classes, and the name that each binds."""
    found: list[tuple[int, int, str]] = []
    for node in ast.parse(path.read_bytes()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [
            (node.lineno, node.end_lineno or 0, part.id)
            for target in targets
            if target is not None
            for part in ast.walk(target)
            if isinstance(part, ast.Name)
        ]
    return found


@functools.cache
def _by_word() -> Mapping[str, Collection[str]]:
    """Each name that functions of the product read, and those functions, as "file: qualified name"."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in ROOT.glob("packages/*/src/**/*.py"):
        _note_words(ast.parse(path.read_bytes()), path.as_posix().split("/src/", 1)[1], [], found)
    return found


def _note_words(node: ast.AST, file: str, scopes: list[Scope], found: Mapping[str, set[str]]) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scopes = [*scopes, node]
    word = getattr(node, "id", getattr(node, "attr", None))
    if isinstance(word, str) and scopes and not isinstance(scopes[-1], ast.ClassDef):
        found[word].add(f"{file}: {_qualified(scopes)}")
    for child in ast.iter_child_nodes(node):
        _note_words(child, file, scopes, found)


def _qualified(scopes: list[Scope]) -> str:
    """As `__qualname__` has it: functions within functions behind ``<locals>``."""
    pairs = itertools.pairwise(scopes)
    inner = [f".{x.name}" if isinstance(before, ast.ClassDef) else f".<locals>.{x.name}" for before, x in pairs]
    return "".join([scopes[0].name, *inner])


def _that_call(measured: Mapping[Path, Measured], functions: Set[str]) -> dict[Path, Measured]:
    found = {
        file: {name: test for name, test in tests.items() if not functions.isdisjoint(test[1])}
        for file, tests in measured.items()
    }
    return {file: tests for file, tests in found.items() if tests}


def _calls_any(tests: Measured, source: str) -> bool:
    return any(call.startswith(f"{source}: ") for _, calls in tests.values() for call in calls)


def _fewest_calls(tests: Measured) -> int:
    return min((len(calls) for _, calls in tests.values()), default=0)


@functools.cache
def _words(file: Path) -> frozenset[str]:
    """Names in a file of tests, also in its texts: a table of defaults names classes there."""
    return frozenset(re.findall(r"\w+", file.read_text())) if file.exists() else frozenset()


def _has_word(file: Path, name: str) -> bool:
    return name in _words(file)


def _remembers(scope: Scope) -> bool:
    names = (getattr(part, "id", getattr(part, "attr", "")) for node in scope.decorator_list for part in ast.walk(node))
    return any(name in _REMEMBERS for name in names)
