"""Mistakes that one could make in an adapter of AITER: arguments, layouts, shuffles, enums, scales, bounds."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from tools.mutate.mutation import Mutation, Operator, Source

_OTHER_MEMBER = {"Silu": "Gelu", "Gelu": "Silu", "No": "per_Token", "Swiglu": "Silu"}
_LAYOUT_METHODS = ("contiguous", "transpose", "t", "permute", "float")
_PACKERS = ("shuffle", "pack_keys", "shuffle_values")
_FACTORS = ("scale", "scaling_factor", "norm_eps", "eps", "softmax_scale", "epsilon")
_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


def _swapped_parameters(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Names that a call of AITER is bound by: the arguments of two parameters change places."""
    if not isinstance(node, (ast.Call, ast.Tuple)) or (isinstance(node, ast.Call) and not _is_bind(node)):
        return
    parts = node.args[1:] if isinstance(node, ast.Call) else node.elts
    names = [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if len(names) < 2 or (isinstance(node, ast.Tuple) and len(names) < 4):
        return
    for first, second in itertools.combinations(names, 2):
        adjacent = names.index(second) == names.index(first) + 1
        if adjacent or _related(str(first.value), str(second.value)):
            yield source.swap("arguments", first, second)


def _swapped_values(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Values that a call of AITER is bound with."""
    if not (isinstance(node, ast.Call) and _is_bind(node)):
        return
    values = [keyword.value for keyword in node.keywords if keyword.arg]
    for first, second in itertools.pairwise(values):
        if source.text(first) != source.text(second):
            yield source.swap("arguments", first, second)


def _layouts(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if not isinstance(node, ast.Call):
        return
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in _PACKERS and node.args:
        yield source.edit("skipped packing", node, source.text(node.args[0]))
    if name in _LAYOUT_METHODS and isinstance(called, ast.Attribute):
        yield source.edit("layout", node, source.text(called.value))
    if name == "permute":
        for first, second in itertools.pairwise(node.args):
            yield source.swap("layout", first, second)


def _enums(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "enum":
        member = node.args[-1]
        if isinstance(member, ast.Constant) and member.value in _OTHER_MEMBER:
            yield source.edit("enum", member, f'"{_OTHER_MEMBER[member.value]}"')
    if isinstance(node, ast.IfExp):
        swapped = f"{source.text(node.orelse)} if {source.text(node.test)} else {source.text(node.body)}"
        yield source.edit("choice", node, swapped)


def _factors(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _FACTORS:
        yield source.edit("scale", node, f"(2.0 * {source.text(node)})")


def _truths(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield source.edit("truth", node, str(not node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.edit("truth", node, source.text(node.operand))


def _off_by_one(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(side, ast.Constant) and side.value == 1:
                yield source.edit("off by one", node, source.text(other))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.left, ast.UnaryOp):
        yield source.edit("off by one", node.left, source.text(node.left.operand))
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield source.edit("off by one", bound, f"{source.text(bound)} + 1")
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        left, right = source.text(node.left), source.text(node.comparators[0])
        yield source.edit("comparison", node, f"{left} {_COMPARISONS[type(node.ops[0])]} {right}")


def _limits(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """Numbers with a name: sizes of tiles, largest head sizes."""
    if isinstance(node, ast.Module):
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                for part in ast.walk(statement.value):
                    if isinstance(part, ast.Constant) and type(part.value) is int:
                        yield source.edit("limit", part, str(part.value + 1))


def _left_out(source: Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield source.edit("left out", node, "pass")


ADAPTER_OPERATORS: tuple[Operator, ...] = (
    _swapped_parameters,
    _swapped_values,
    _layouts,
    _enums,
    _factors,
    _truths,
    _off_by_one,
    _limits,
    _left_out,
)


def _is_bind(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "bind"


def _related(first: str, second: str) -> bool:
    """Parameters of one kind, by their names: ``k_cache`` and ``v_cache``, ``kv_indptr`` and ``qo_indptr``."""
    return first.rsplit("_", 1)[-1] == second.rsplit("_", 1)[-1]
