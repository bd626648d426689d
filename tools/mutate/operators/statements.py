"""Statements left out: calls, assignments that others see, early ends of loops and functions, refusals."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.mutate.mutation import Mutation, Operator, Source

_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.match_case)


def left_out(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """A call for its effect, a sum carried on, an attribute or an item that is set, a refusal."""
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield source.edit("left out", node, "pass")
    if isinstance(node, (ast.AugAssign, ast.Delete, ast.Raise)):
        yield source.edit("left out", node, "pass")
    if isinstance(node, ast.Assign) and all(isinstance(x, (ast.Attribute, ast.Subscript)) for x in node.targets):
        yield source.edit("left out", node, "pass")


def went_on(source: Source, node: ast.AST) -> Iterator[Mutation]:
    """``continue``, ``break`` or a return inside a block that is not there, so that what follows runs too."""
    if isinstance(node, _BLOCKS):
        for statement in (*node.body, *getattr(node, "orelse", ())):
            if isinstance(statement, (ast.Continue, ast.Break, ast.Return)):
                yield source.edit("went on", statement, "pass")


STATEMENT_OPERATORS: tuple[Operator, ...] = (left_out, went_on)
