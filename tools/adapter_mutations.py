"""Mistakes that one could make in an adapter of AITER, each as a small edit of its source."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "packages" / "atom-kernels" / "src"
ADAPTERS = SOURCES / "atom_kernels" / "aiter"
# They find and call AITER, and have tests of their own: no adapter is in them.
NOT_ADAPTERS = ("__init__.py", "api.py", "functions.py", "library.py", "report.py", "sources.py")
_OTHER_MEMBER = {"Silu": "Gelu", "Gelu": "Silu", "No": "per_Token", "Swiglu": "Silu"}
_LAYOUT_METHODS = ("contiguous", "transpose", "t", "permute", "float")
_PACKERS = ("shuffle", "pack_keys", "shuffle_values", "transpose_values")
_FACTORS = ("scale", "scaling_factor", "norm_eps", "eps", "softmax_scale", "epsilon")
_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


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

    def __str__(self) -> str:
        where = f"{self.path.relative_to(ADAPTERS)}:{self.line}"
        return f"{where} {self.kind}: {_one_line(self.before)} -> {_one_line(self.after)}"


def all_mutations() -> list[Mutation]:
    """Of every adapter, in the order of files and lines; each is valid Python."""
    files = [file for file in sorted(ADAPTERS.rglob("*.py")) if file.name not in NOT_ADAPTERS]
    return [mutation for file in files for mutation in mutations_of(file)]


def mutations_of(path: Path) -> list[Mutation]:
    """Those of one file, without repetitions."""
    source = _Source(path)
    found = {(edit.start, edit.end, edit.after): edit for node in source.nodes for edit in _edits(source, node)}
    return sorted(found.values(), key=lambda edit: (edit.line, edit.start, edit.kind, edit.after))


def function_at(path: Path, line: int) -> str | None:
    """The innermost function that a line is in."""
    inside = [name for first, last, name in _functions(path) if first <= line <= last]
    return inside[-1] if inside else None


@functools.cache
def _functions(path: Path) -> list[tuple[int, int, str]]:
    """First line, last line and name of each, outer ones first."""
    nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.FunctionDef)]
    return sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes)


class _Source:
    """A file's bytes, and the nodes of its functions and constants; annotations and docstrings are left out."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path.read_bytes()
        self._starts = [0, *itertools.accumulate(len(line) for line in self.data.splitlines(keepends=True))]
        self.nodes = list(_walk(ast.parse(self.data)))

    def span(self, node: ast.AST) -> tuple[int, int]:
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


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.JoinedStr):  # words for people
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _edits(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    for rule in _RULES:
        yield from rule(source, node)


def _swapped_parameters(source: _Source, node: ast.AST) -> Iterator[Mutation]:
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


def _swapped_values(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    """Values that a call of AITER is bound with."""
    if not (isinstance(node, ast.Call) and _is_bind(node)):
        return
    values = [keyword.value for keyword in node.keywords if keyword.arg]
    for first, second in itertools.pairwise(values):
        if source.text(first) != source.text(second):
            yield source.swap("arguments", first, second)


def _layouts(source: _Source, node: ast.AST) -> Iterator[Mutation]:
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


def _enums(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "enum":
        member = node.args[-1]
        if isinstance(member, ast.Constant) and member.value in _OTHER_MEMBER:
            yield source.edit("enum", member, f'"{_OTHER_MEMBER[member.value]}"')
    if isinstance(node, ast.IfExp):
        swapped = f"{source.text(node.orelse)} if {source.text(node.test)} else {source.text(node.body)}"
        yield source.edit("choice", node, swapped)


def _factors(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _FACTORS:
        yield source.edit("scale", node, f"(2.0 * {source.text(node)})")


def _truths(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield source.edit("truth", node, str(not node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.edit("truth", node, source.text(node.operand))


def _off_by_one(source: _Source, node: ast.AST) -> Iterator[Mutation]:
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


def _limits(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    """Numbers with a name: sizes of tiles, largest head sizes."""
    if isinstance(node, ast.Module):
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                for part in ast.walk(statement.value):
                    if isinstance(part, ast.Constant) and type(part.value) is int:
                        yield source.edit("limit", part, str(part.value + 1))


def _left_out(source: _Source, node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield source.edit("left out", node, "pass")


_RULES: tuple[Callable[[_Source, ast.AST], Iterator[Mutation]], ...] = (
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


def _one_line(text: str) -> str:
    return " ".join(text.split())
