"""Finds an installed AITER and reads its parameter lists from its sources, without importing it.

Importing it looks for ROCm and may compile for minutes, and `inspect` shows only ``(*args, **kwargs)`` of functions
whose bodies are kernels. The sources are always there: AITER compiles most of itself at its first call.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path

from atom_kernels.aiter.api import AiterApi, Parameter
from atom_kernels.aiter.functions import FUNCTIONS

DISTRIBUTION = "amd-aiter"
_INSTALL = "install AITER from its git repository at v0.1.17 or later, see docs/amd.md"

# CPython 3.11 counts the depth of a tree for all threads together, and fails where two of them parse at a time.
_PARSING = threading.Lock()


class AiterUnusableError(RuntimeError):
    """There is no AITER, or it is not one that we can use; the message says why, in one line."""


def installed_api() -> AiterApi:
    """What the installed AITER offers.

    Raises:
        AiterUnusableError: none is installed, another project has its name, or it is of a version that we do not know.
    """
    version = installed_version()
    if version is None:
        raise AiterUnusableError(f"the distribution {DISTRIBUTION} is not installed ({_INSTALL})")
    return read_api(package_folder(), version)


def installed_version() -> str | None:
    """The version of the distribution `amd-aiter`; None where it is not installed. Nothing is imported."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_folder() -> Path:
    """The folder of the package that ``import aiter`` would take.

    Raises:
        AiterUnusableError: there is none, or it is the unrelated project of that name on PyPI.
    """
    spec = importlib.util.find_spec("aiter")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise AiterUnusableError(f"the distribution {DISTRIBUTION} is installed, but there is no package aiter")
    folder = Path(places[0])
    if not (folder / "ops").is_dir():
        raise AiterUnusableError(
            f"the package aiter in {folder} is another project of that name, not AMD's ({_INSTALL})"
        )
    return folder


@functools.cache
def read_api(folder: Path, version: str) -> AiterApi:
    """The API of the package in `folder`, read from its release's places of each function, once in a process.

    Raises:
        AiterUnusableError: it is neither v0.1.17 or later nor the release on PyPI, or a source cannot be read.
    """
    functions = _read(folder, "git")
    release = _release(functions, version)
    if release != "git":
        functions = _read(folder, release)
    return AiterApi(release, version, tuple(sorted(functions.items())))


def _release(functions: dict[str, tuple[Parameter, ...]], version: str) -> str:
    """The release, told by its parameters: the version of a checkout without tags says nothing."""
    norm = functions.get("rmsnorm2d_fwd_with_add", ())
    if any(parameter.name == "gemma_norm" for parameter in norm):  # came with v0.1.17
        return "git"
    if version.startswith("0.1.7.post2"):
        return "pypi"
    raise AiterUnusableError(
        f"{DISTRIBUTION} {version} is older than v0.1.17 and is not the release 0.1.7.post2 of PyPI ({_INSTALL})"
    )


def _read(folder: Path, release: str) -> dict[str, tuple[Parameter, ...]]:
    trees: dict[Path, ast.Module] = {}
    found: dict[str, tuple[Parameter, ...]] = {}
    for name, function in FUNCTIONS.items():
        path = function.path_in(release)
        if path is None:
            continue
        module, _, attribute = path.partition(":")
        file = _file_of(folder, module)
        if file is None:
            continue
        if file not in trees:
            trees[file] = _parse(file)
        definition = _find(trees[file], attribute)
        if definition is not None:
            is_method = "." in attribute
            found[name] = _parameters(definition.args)[is_method:]
    return found


def _file_of(folder: Path, module: str) -> Path | None:
    inside = folder.joinpath(*module.split(".")[1:])
    candidates = (inside.with_suffix(".py"), inside / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _parse(file: Path) -> ast.Module:
    try:
        source = file.read_bytes()
        with _PARSING:
            return ast.parse(source, str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise AiterUnusableError(f"{file} of {DISTRIBUTION} cannot be read: {error}") from error


def _find(tree: ast.Module, path: str) -> ast.FunctionDef | None:
    """A function of the module, or a method of an instance that it keeps ("tgemm.mm")."""
    instance, _, name = path.rpartition(".")
    body: list[ast.stmt] = tree.body
    if instance:
        assigned = [node for node in body if isinstance(node, ast.Assign)]
        made = [node.value for node in assigned if ast.unparse(node.targets[0]) == instance]
        classes = [ast.unparse(call.func) for call in made if isinstance(call, ast.Call)]
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name in classes), [])
    return _definition(body, name)


def _definition(body: Sequence[ast.AST], name: str) -> ast.FunctionDef | None:
    """The last definition of that name outside of other classes and functions, as Python would have it."""
    found = None
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found = node if node.name == name else found
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            found = _definition(list(ast.iter_child_nodes(node)), name) or found
    return found


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [ast.unparse(node) for node in arguments.defaults]
    listed = [Parameter(given.arg, default) for given, default in zip(positional, defaults, strict=True)]
    for given, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        listed.append(Parameter(given.arg, None if default is None else ast.unparse(default), True))
    return tuple(listed)
