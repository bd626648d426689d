"""Mistakes in expressions: comparisons, arithmetic, truths, conditions, numbers, signs and keys."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from tools.mutate.mutation import Mutation, Operator, Source

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.MatMult: ("@", "*"),
}
# A condition that is one such comparison is turned by the comparison's own edit.
_TURNED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_TAKES_A_KEY = ("get", "pop", "setdefault")


def comparisons(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Bounds that take in or leave out what lies on them; equal for unequal."""
    if isinstance(node, ast.Compare):
        for (left, right), sign in zip(itertools.pairwise([node.left, *node.comparators]), node.ops, strict=True):
            yield source.replace_between("comparison", node, (left, right), _COMPARISONS[type(sign)])


def arithmetic(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Plus for minus and the like; text and lists are only joined, so their plus stays."""
    if isinstance(node, ast.BinOp) and not (_is_joined(node.left) or _is_joined(node.right)):
        yield source.replace_between("arithmetic", node, (node.left, node.right), _ARITHMETIC[type(node.op)])
    if isinstance(node, ast.AugAssign):
        yield source.replace_between("arithmetic", node, (node.target, node.value), _ARITHMETIC[type(node.op)])


def truths(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """``and`` for ``or``, ``not`` left out, True for False."""
    if isinstance(node, ast.BoolOp):
        signs = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for pair in itertools.pairwise(node.values):
            yield source.replace_between("truth", node, pair, signs)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.edit("truth", node, source.text(node).removeprefix("not").lstrip())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield source.edit("truth", node, str(not node.value))


def conditions(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """A condition turned into its opposite. Loops that would never end are not worth their time."""
    if isinstance(node, ast.If):
        yield from _turned(source, node.test)
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _turned(source, test)
    if isinstance(node, ast.IfExp):
        yield from _turned(source, node.test)


def numbers(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Whole numbers off by one, others doubled; the ends of slices moved; a minus left out."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield source.edit("number", node, str(node.value + 1))
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield source.edit("number", node, str(2 * node.value or 1.0))
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield source.edit("number", bound, f"({source.text(bound)}) + 1")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield source.edit("number", node, source.text(node).removeprefix("-"))


def keys(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Names by which something is looked up, or that something is compared with."""
    for key in _keys(node):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield source.edit("key", key, repr(f"{key.value}_"))


def _keys(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Subscript):
        yield node.slice
    elif isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    elif isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            yield from side.elts if isinstance(side, (ast.Tuple, ast.Set, ast.List)) else (side,)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES_A_KEY:
        yield from node.args[:1]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        yield from node.args[1:2]


def _turned(source: Source, test: ast.expr) -> Iterator[Mutation]:
    is_turned_elsewhere = (
        isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _TURNED)
    ) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
    if not is_turned_elsewhere:
        yield source.edit("condition", test, f"(not ({source.text(test)}))")


def _is_joined(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


EXPRESSION_OPERATORS: tuple[Operator, ...] = (comparisons, arithmetic, truths, conditions, numbers, keys)
