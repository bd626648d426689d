"""`lazy_names`: packages whose names are imported when they are first used, so that torch stays out until then."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pkgutil import get_data
from typing import Any


def lazy_names(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of `package`, which finds each name where its `if TYPE_CHECKING:` block imports it from.

    What type checkers read is so the only list of where names live.
    """
    source = ast.parse(get_data(package, "__init__.py") or b"")
    blocks = [node.body for node in source.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module for node in imports if node.module for alias in node.names}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return import_name
