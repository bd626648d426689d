"""What tests of the repository itself look at: the packages, their files and their syntax trees."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

# Each package (by import name) with the first-party packages that it may import.
MAY_IMPORT = {
    "atom_kernels": (),
    "atom_models": ("atom_kernels",),
    "atom_core": ("atom_models", "atom_kernels"),
    "atom_server": ("atom_core",),
    "atom_vllm": ("atom_models", "atom_kernels"),
}


def package_folder(name: str) -> Path:
    """The folder of a package, by its import name."""
    return ROOT / "packages" / name.replace("_", "-")


def needed_siblings(package: str) -> list[str]:
    """The first-party packages that must be installed with a package, by import name."""
    return sorted(set(MAY_IMPORT[package]).union(*(needed_siblings(name) for name in MAY_IMPORT[package])))


@cache
def project(name: str) -> dict[str, Any]:
    """The ``[project]`` table of a package, by its import name."""
    return tomllib.loads((package_folder(name) / "pyproject.toml").read_text())["project"]


def product_files() -> list[Path]:
    """Python files of the packages, the benchmarks and the tools: all but tests."""
    places = [package_folder(name) / "src" for name in MAY_IMPORT] + [ROOT / "benchmarks", ROOT / "tools"]
    return sorted(file for place in places for file in place.rglob("*.py"))


def source_files(package: str) -> list[Path]:
    """Python files of a package, by its import name."""
    return sorted((package_folder(package) / "src" / package).rglob("*.py"))


def test_files() -> list[Path]:
    """Python files of all tests and what supports them."""
    return sorted([*ROOT.glob("packages/*/tests/**/*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "conftest.py"])


def short(file: Path) -> str:
    """A file's path for messages."""
    return str(file.relative_to(ROOT))


@cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(), filename=str(file))


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree, which many tests look through: to walk takes longer than to parse."""
    return tuple(ast.walk(module))


@cache
def imported_modules(file: Path, *, for_types: bool = True) -> tuple[tuple[str, int], ...]:
    """(module, line) of every absolute import in a file, wherever in it; those for type checkers alone if `for_types`.

    `from package import name` counts as an import of the package.
    """
    found: list[tuple[str, int]] = []
    waiting: list[ast.AST] = [tree(file)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            continue  # most of a tree, and no statement is in it
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module, node.lineno))
    return tuple(found)


@cache
def dotted_names(file: Path) -> tuple[tuple[str, int], ...]:
    """(name, line) of every ``a.b.c`` and bare name that a file uses."""
    named = (node for node in nodes(tree(file)) if isinstance(node, (ast.Attribute, ast.Name)))
    return tuple((node.id if isinstance(node, ast.Name) else ast.unparse(node), node.lineno) for node in named)


test_files.__test__ = False  # a function for tests, not one of them
