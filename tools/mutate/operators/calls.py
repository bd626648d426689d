"""Mistakes in calls: arguments swapped, another function of the same kind, a step left out; and in defaults."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from tools.mutate.mutation import Mutation, Operator, Source

_OPPOSITES = (
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("floor", "ceil"),
    ("find", "rfind"),
    ("startswith", "endswith"),
    ("removeprefix", "removesuffix"),
    ("append", "appendleft"),
    ("popleft", "pop"),
)
_OPPOSITE = {name: other for pair in _OPPOSITES for name, other in (pair, pair[::-1])}
_WITHOUT_ORDER = (
    *("min", "max", "minimum", "maximum", "add", "mul", "logical_and", "logical_or"),
    *("isclose", "allclose", "equal", "transpose", "swapaxes"),
)
# What gives the same sort of thing as it is called on.
_STEPS = ("transpose", "t", "permute", "strip", "lstrip", "rstrip", "lower", "clone", "copy", "unsqueeze", "squeeze")
_STEP_FUNCTIONS = ("sorted", "reversed", "abs")


def swapped_arguments(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Two neighbors in the order of a call; a sum, or the largest of some, has no order."""
    if isinstance(node, ast.Call) and not _has_no_order(node):
        plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        for first, second in itertools.pairwise(plain):
            if source.text(first) != source.text(second):
                yield source.swap("arguments", first, second)


def other_functions(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """min for max, any for all, find for rfind."""
    if isinstance(node, ast.Call):
        name, text = _called(node), source.text(node.func)
        if name in _OPPOSITE:
            yield source.edit("function", node.func, text.removesuffix(name) + _OPPOSITE[name])


def left_out_steps(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """A transposition, a copy, an order, a strip that is not done."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and node.func.attr in _STEPS:
        yield source.edit("step left out", node, f"({source.text(node.func.value)})")
    if isinstance(node.func, ast.Name) and node.func.id in _STEP_FUNCTIONS and len(node.args) == 1:
        yield source.edit("step left out", node, f"({source.text(node.args[0])})")


def defaults(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Another default of a parameter or a field."""
    for value in _defaults(node):
        if not isinstance(value, ast.Constant):
            continue
        if isinstance(value.value, bool):
            yield source.edit("default", value, str(not value.value))
        elif isinstance(value.value, (int, float)):
            yield source.edit("default", value, str(value.value + 1))
        elif isinstance(value.value, str):
            yield source.edit("default", value, repr(f"{value.value}_"))


def _has_no_order(call: ast.Call) -> bool:
    is_builtin = isinstance(call.func, ast.Name) and call.func.id in ("min", "max")
    return is_builtin or (_called(call) in _WITHOUT_ORDER and len(call.args) == 2)


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _defaults(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.arguments):
        return [*node.defaults, *(value for value in node.kw_defaults if value is not None)]
    if isinstance(node, ast.ClassDef):
        return [item.value for item in node.body if isinstance(item, ast.AnnAssign) and item.value is not None]
    return []


CALL_OPERATORS: tuple[Operator, ...] = (swapped_arguments, other_functions, left_out_steps, defaults)
