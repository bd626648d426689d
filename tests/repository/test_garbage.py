"""Python's collection of garbage belongs to the process: only the mains of our own processes change it for good."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

from atom_core.garbage import kept_for_good
from source_tree import MAY_IMPORT, nodes, source_files, tree

# The main of each process that is ours, and what it calls to begin its work.
MAINS = {
    "atom_core/engine/process/core_process.py: main": "_EngineLoop(core, context, sender, start.folder).run",
    "atom_core/executor/processes/rank_loop.py: _load": "self._answer",
    "atom_server/lifecycle.py: _serve": "server.serve",
}
# What a start made goes when the engine sleeps, and what waking made is frozen as a start's is.
WAKING = {
    "atom_core/engine/process/core_process.py: _handle",
    "atom_core/executor/processes/rank_loop.py: _handle",
}
# It puts collection back as it was.
FOR_A_WHILE = "atom_core/garbage.py: no_collection"
# It freezes what a process of ours imports: torch, and transformers.
FOR_IMPORTS = "atom_core/garbage.py: kept_for_good"
THAT_IMPORT = {
    "atom_core/engine/process/core_process.py: _start_core",
    "atom_core/executor/processes/worker.py: main",
    "atom_core/folder_code/converting.py: main",
    "atom_server/pictures/decode_process.py: main",
}


@cache
def calls() -> tuple[tuple[str, str, int], ...]:
    return tuple(find_calls())


def find_calls() -> Iterator[tuple[str, str, int]]:
    """(file and function, what is called, line) of every call of the packages that stands in a function."""
    for file in (file for package in MAY_IMPORT for file in source_files(package)):
        place = file.as_posix().partition("/src/")[2]
        for function in nodes(tree(file)):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = (node for node in ast.walk(function) if isinstance(node, ast.Call))
                yield from ((f"{place}: {function.name}", ast.unparse(node.func), node.lineno) for node in inner)


def test_only_the_mains_of_our_processes_freeze_garbage():
    assert {where for where, called, _ in calls() if called in ("gc.freeze", "freeze")} == {
        *MAINS,
        *WAKING,
        FOR_IMPORTS,
    }
    assert {where for where, called, _ in calls() if called == "kept_for_good"} == THAT_IMPORT


def test_what_a_start_left_is_frozen_before_the_work_begins():
    for main, work in MAINS.items():
        lines = {called: line for where, called, line in calls() if where == main}
        assert lines["gc.freeze"] < lines[work]


def test_collection_is_put_off_in_one_place_and_its_thresholds_are_left_alone():
    switches = {"gc.enable", "gc.disable", "gc.set_threshold", "gc.set_debug"}
    assert {where for where, called, _ in calls() if called in switches} == {FOR_A_WHILE}


def test_what_is_kept_for_good_is_frozen_before_anything_looks_at_it():
    looks: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        looks.append(phase)

    gc.callbacks.append(note)
    try:
        before = gc.get_freeze_count()
        with kept_for_good():
            made = [[] for _ in range(100_000)]
        assert gc.get_freeze_count() >= before + len(made)
        assert gc.isenabled()
        assert looks == []
    finally:
        gc.callbacks.remove(note)
