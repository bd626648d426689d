"""`Mutation`: a small edit of one file. `Source`: a file's bytes and nodes, from which operators make edits."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutate.unseen import is_unseen

ROOT = Path(__file__).resolve().parents[2]
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Mutation:
    """An edit of one file: `after` in the place of the bytes `start` to `end`, which are `before`."""

    path: Path
    kind: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self) -> str:
        """The file's source with the mistake in it."""
        source = self.path.read_bytes()
        return (source[: self.start] + self.after.encode() + source[self.end :]).decode()

    @property
    def file(self) -> str:
        """The file's path below `src`, or its name if it is not in a package."""
        path = self.path.as_posix()
        return path.split("/src/", 1)[1] if "/src/" in path else self.path.name

    @property
    def scope(self) -> str:
        """The name of the innermost function or class that it is in, "" outside of all."""
        node = self.enclosing
        return node.name if node else ""

    @property
    def enclosing(self) -> Scope | None:
        """The innermost function or class that it is in."""
        return self.scopes[-1] if self.scopes else None

    @property
    def scopes(self) -> list[Scope]:
        """The functions and classes that it is in, the outermost first."""
        return [node for node in _scopes(self.path) if node.lineno <= self.line <= (node.end_lineno or 0)]

    @property
    def lot(self) -> str:
        """A number drawn from what the edit is, and not from where it stands: a sample takes the lowest."""
        what = (self.file, self.scope, self.kind, self.before, self.after)
        return hashlib.sha256("\0".join(what).encode()).hexdigest()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} {self.scope}".rstrip()
        return f"{where} | {self.kind} | {one_line(self.before)} -> {one_line(self.after)}"


Operator = Callable[["Source", ast.AST], Iterator[Mutation]]


def mutations_of(path: Path, operators: Sequence[Operator]) -> list[Mutation]:
    """Those of one file, without repetitions, in the order of lines."""
    source = Source(path)
    found: dict[tuple[int, int, str], Mutation] = {}
    for node, operator in itertools.product(source.nodes, operators):
        for edit in operator(source, node):
            found.setdefault((edit.start, edit.end, edit.after), edit)
    edits = [edit for edit in found.values() if edit.before != edit.after]
    return sorted(edits, key=lambda edit: (edit.line, edit.start, edit.kind, edit.after))


class Source:
    """A file's bytes, and the nodes in which a mistake would matter: no annotations, docstrings or words for people."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path.read_bytes()
        self._starts = [0, *itertools.accumulate(len(line) for line in self.data.splitlines(keepends=True))]
        self.nodes = list(_walk(ast.parse(self.data)))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The bytes of a node, first and one past the last; parentheses around it are not its own."""
        line, column, end_line, end_column = (
            getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        )
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def edit(self, kind: str, node: ast.AST, after: str) -> Mutation:
        start, end = self.span(node)
        return Mutation(self.path, kind, getattr(node, "lineno", 0), start, end, self.text(node), after)

    def swap(self, kind: str, first: ast.AST, second: ast.AST) -> Mutation:
        """The texts of two nodes in each other's place."""
        (start, first_end), (second_start, end) = self.span(first), self.span(second)
        between = self.data[first_end:second_start].decode()
        before = self.data[start:end].decode()
        after = self.text(second) + between + self.text(first)
        return Mutation(self.path, kind, getattr(first, "lineno", 0), start, end, before, after)

    def replace_between(
        self, kind: str, whole: ast.AST, parts: tuple[ast.AST, ast.AST], signs: tuple[str, str]
    ) -> Mutation:
        """The first sign between two parts of `whole` becomes the second; parentheses stay."""
        start, end = self.span(whole)
        first, last = self.span(parts[0])[1], self.span(parts[1])[0]
        between = self.data[first:last].decode().replace(signs[0], signs[1], 1)
        after = self.data[start:first].decode() + between + self.data[last:end].decode()
        return Mutation(self.path, kind, getattr(parts[0], "lineno", 0), start, end, self.text(whole), after)


def one_line(text: str) -> str:
    """Text with every run of white space as one space."""
    return " ".join(text.split())


@functools.cache
def _scopes(path: Path) -> list[Scope]:
    """The functions and classes of a file, outer ones first."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sorted((node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, kinds)), key=_line)


def _line(node: Scope) -> int:
    return node.lineno


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    if is_unseen(node):
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)
