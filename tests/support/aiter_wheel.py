"""The wheel of AITER on the package index, opened but never installed: what its sources say, and their pure torch."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

VERSION = "0.1.7.post2.dev18"


class AiterWheel:
    """Sources of one wheel.

    Attributes:
        file: the wheel.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    @functools.cache  # noqa: B019 - one wheel for a whole run
    def tree(self, path: str) -> ast.Module:
        """The syntax tree of a file, by its path in the wheel."""
        with zipfile.ZipFile(self.file) as archive:
            return ast.parse(archive.read(path).decode(), filename=path)

    def has(self, path: str) -> bool:
        """Whether the wheel has a file."""
        with zipfile.ZipFile(self.file) as archive:
            return path in archive.namelist()

    def definition(self, path: str, name: str) -> ast.FunctionDef:
        """The definition of a function at the top of a file; KeyError if there is none."""
        found = {node.name: node for node in self.tree(path).body if isinstance(node, ast.FunctionDef)}
        return found[name]

    def functions(self, path: str, *names: str, **known: Any) -> dict[str, Callable[..., Any]]:
        """Functions of a file, executed by themselves: they see torch, AITER's dtypes, each other and `known`."""
        dtypes = SimpleNamespace(fp32=torch.float32, i32=torch.int32, i8=torch.int8, fp16=torch.float16)
        definitions = [self.definition(path, name) for name in names]
        for definition in definitions:
            definition.decorator_list = []
        seen: dict[str, Any] = {"torch": torch, "F": F, "functools": functools, "dtypes": dtypes, **known}
        exec(compile(ast.Module(definitions, []), path, "exec"), seen)  # the vendor's own code is what is tested
        return {name: seen[name] for name in names}


def parameters(definition: ast.FunctionDef) -> list[tuple[str, str | None]]:
    """Name and default (as its source) of each parameter, in order; `self` left out."""
    arguments = definition.args
    named = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(named) - len(arguments.defaults)) + [ast.unparse(node) for node in arguments.defaults]
    return [(arg.arg, default) for arg, default in zip(named, defaults, strict=True) if arg.arg != "self"]


@functools.cache
def aiter_wheel() -> AiterWheel:
    """The wheel, downloaded once for each run."""
    folder = Path(tempfile.mkdtemp(prefix="aiter-wheel-"))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(folder), f"amd-aiter=={VERSION}"], check=True)
    return AiterWheel(next(folder.glob("*.whl")))
