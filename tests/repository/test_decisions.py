"""What runs, and what users are told, is decided by what things state: not by names, messages or classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from atom_kernels.operator import BACKEND_ORDER
from source_tree import MAY_IMPORT, nodes, short, source_files, tree

_BACKENDS = {*BACKEND_ORDER, "reference"}
# An expression that holds a backend, or its name.
_HOLDS_A_BACKEND = re.compile(r"(^|[._])(backend|backends|name|implementation)$")
# An expression that holds a message for people. A `finish_reason` is one of a few words that the protocol fixes.
_HOLDS_A_REASON = re.compile(r"(^|\.)((?!finish_|stop_)\w+_)?(reasons?|why(_\w+)?|refusal|error|message)$")
_READS_TEXT = {"startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split", "removeprefix"}
# Who may: the machine says which libraries it has, and a backend says of itself that it is plain torch.
_CHOOSERS = {
    "packages/atom-kernels/src/atom_kernels/operator.py",
    "packages/atom-kernels/src/atom_kernels/platform/decisions.py",
    "packages/atom-kernels/src/atom_kernels/platform/platform.py",
    "packages/atom-kernels/src/atom_kernels/select.py",
}
_HOLDS_A_FORMAT = re.compile(r"(^|\.)(weight|gate_up|down)_format$")
_FORMATS = {"Float8", "Integers", "Mxfp4", "Nvfp4", "Plain"}
# Messages of other people's libraries, which state nothing else.
_OUTSIDE = {
    "packages/atom-core/src/atom_core/structured_output/llguidance/trial.py",
    "packages/atom-core/src/atom_core/structured_output/xgrammar/backend.py",
    "packages/atom-core/src/atom_core/worker/ranks/torch_ranks.py",
}


def compared_backends(module: ast.Module) -> Iterator[int]:
    """Lines that compare something that holds a backend with the name of one."""
    for node in nodes(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            if names & _BACKENDS and any(_HOLDS_A_BACKEND.search(ast.unparse(side)) for side in sides):
                yield node.lineno


def read_reasons(module: ast.Module) -> Iterator[int]:
    """Lines that look for words in a reason or a message."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS_TEXT:
            if _HOLDS_A_REASON.search(ast.unparse(node.func.value)):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            has_text = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
            held = [re.sub(r"^str\((.*)\)$", r"\1", ast.unparse(side)) for side in sides]
            if has_text and any(map(_HOLDS_A_REASON.search, held)):
                yield node.lineno


def asked_formats(module: ast.Module) -> Iterator[int]:
    """Lines that ask whether a format of weights is of a class."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            classes = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            yield from [node.lineno] if classes & _FORMATS else []


def absent_formats(module: ast.Module) -> Iterator[int]:
    """Lines that ask whether there is a format of weights: plain numbers are a format like any other."""
    for node in nodes(module):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            yield from [node.lineno] if _HOLDS_A_FORMAT.search(ast.unparse(node.left)) else []


def found(look, allowed: set[str]) -> list[str]:
    files = [file for package in MAY_IMPORT for file in source_files(package) if short(file) not in allowed]
    return [f"{short(file)}:{line}" for file in files for line in look(tree(file))]


def test_nothing_but_the_choice_compares_names_of_backends():
    assert found(compared_backends, _CHOOSERS) == []


def test_nothing_is_decided_by_the_words_of_a_reason():
    assert found(read_reasons, _OUTSIDE) == []


def test_formats_of_weights_are_read_by_what_they_say_of_themselves():
    assert found(asked_formats, set()) + found(absent_formats, set()) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [("isinstance(held, Mxfp4 | Nvfp4)", 1), ("isinstance(x, (A, Plain))", 1), ("isinstance(layout, PlainLayout)", 0)],
)
def test_classes_of_formats_are_told_from_others(source: str, count: int):
    assert len(list(asked_formats(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("problem.weight_format is None", 1),
        ("gate_up_format is not None or x", 1),
        ("problem.input_format is None", 0),
        ("problem.weight_format == held", 0),
    ],
)
def test_asking_for_no_format_is_told_from_comparing_formats(source: str, count: int):
    assert len(list(absent_formats(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('plan.rows[0].backend != "torch"', 1),
        ('[one for one in plans if one.backend in ("native", "triton")]', 1),
        ('"reference" == backend.name', 1),
        ("plan.backend == wanted", 0),
        ('device == "cpu"', 0),
    ],
)
def test_names_of_backends_are_told_from_other_names(source: str, count: int):
    assert len(list(compared_backends(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('reason.startswith("multiplies plain")', 1),
        ('"MXFP4" in str(error) or "MXFP4" in plan.why_not', 2),
        ('why == "disabled"', 1),
        ('reason is None or text.startswith("a")', 0),
        ('f"{what}: {reason}"', 0),
    ],
)
def test_reading_a_reason_is_told_from_showing_it(source: str, count: int):
    assert len(list(read_reasons(ast.parse(source)))) == count
