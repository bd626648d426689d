"""No module needs, while it is imported, one that waits for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from source_tree import MAY_IMPORT, package_folder, source_files, tree


def modules() -> dict[str, Path]:
    """The files of all packages by the names of their modules."""
    found = {}
    for package in MAY_IMPORT:
        source = package_folder(package) / "src"
        for file in source_files(package):
            parts = file.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_when_run(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that importing a module runs: none in functions, none for type checkers alone."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def needed_by(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """The modules that must be complete for `name` to be imported.

    These are what it imports, with the packages that they lie in; not the packages that it lies in itself, unless it
    takes a name from one.
    """
    targets = set()
    for node in imports_when_run(tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif node.module:
            as_modules = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= as_modules & known
            targets |= {node.module} if as_modules - known else set()
    packages = {".".join(target.split(".")[:depth]) for target in targets for depth in range(1, target.count(".") + 1)}
    around = {package for package in packages if name.startswith(f"{package}.")}
    return ((targets | (packages - around)) & known) - {name}


def circle_in(files: dict[str, ast.Module]) -> list[str]:
    """The modules of a circle, each needed by the next; none if there is no circle."""
    known = set(files)
    try:
        TopologicalSorter({name: needed_by(name, tree, known) for name, tree in files.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_imports_go_round():
    assert circle_in({name: tree(file) for name, file in modules().items()}) == []


@pytest.mark.parametrize(
    ("sources", "modules"),
    [
        ({"a": "import b", "b": "from a import x"}, {"a", "b"}),
        # A package takes a name from a module of another, which takes a module from the first.
        (
            {"p": "from p.x import X", "p.x": "from q.y import Y", "q.y": "from p.z import Z", "p.z": ""},
            {"p", "p.x", "q.y"},
        ),
        ({"p": "from p.x import X", "p.x": "from p import Y"}, {"p", "p.x"}),
        ({"a": "if True:\n import b", "b": "class B:\n import a"}, {"a", "b"}),
        ({"p": "from p.x import X", "p.x": "from p import y", "p.y": "import p.z", "p.z": ""}, set()),
        ({"a": "import b", "b": "def f():\n import a"}, set()),
        ({"a": "import b", "b": "if TYPE_CHECKING:\n import a"}, set()),
    ],
)
def test_a_circle_is_noticed_and_named(sources: dict[str, str], modules: set[str]):
    assert set(circle_in({name: ast.parse(source) for name, source in sources.items()})) == modules
