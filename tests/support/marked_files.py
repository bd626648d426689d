"""A pytest plugin: files in which no test can have the marks that `-m` asks for are not imported.

`-m slow` chooses one test of twenty, and each worker imported the files of all others, which takes longer than most
tests. A file's marks are read from its text, so each stands in the file of its tests: one from elsewhere is an error.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

# By which of them tests are chosen, see `pyproject.toml`.
MARKS = frozenset({"gpu", "multi_gpu", "slow", "network", "timing", "by_hand"})
_WORDS = frozenset({"and", "or", "not"})


def pytest_configure(config: pytest.Config) -> None:
    asked = str(config.option.markexpr)
    # Where other marks are asked for, or none, any file may have them.
    if asked and set(re.findall(r"\w+", asked)) <= MARKS | _WORDS:
        config.pluginmanager.register(AskedFor(asked), "asked-for-files")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        unnamed = {mark.name for mark in item.iter_markers()} & MARKS - marks_in(item.path)
        if unnamed:
            raise pytest.UsageError(
                f"{item.nodeid} is marked {', '.join(sorted(unnamed))}, and its file does not say so: write "
                f"pytest.mark.{min(unnamed)} there, since -m leaves files out by the marks in their text"
            )


class AskedFor:
    """Leaves out the files for whose marks the expression cannot hold, but for those that are asked for by name."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or self._can_hold(marks_in(collection_path)):
            return None
        return True

    def _can_hold(self, marks: frozenset[str]) -> bool:
        """For a test that has none of them, some, or all."""
        parts = (some for size in range(len(marks) + 1) for some in combinations(sorted(marks), size))
        return any(holds(self._expression, frozenset(some)) for some in parts)


@cache
def holds(expression: str, marks: frozenset[str]) -> bool:
    try:
        return Expression.compile(expression).evaluate(lambda name, **_: name in marks)
    except SyntaxError:  # pytest says what is wrong with it
        return True


@cache
def marks_in(file: Path) -> frozenset[str]:
    """The marks that a file names."""
    return frozenset(re.findall(r"\bmark\.(\w+)", file.read_text(encoding="utf-8"))) & MARKS
