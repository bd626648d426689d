"""The defaults of the fields of all dataclasses and structs of a package."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

# "module.Class", without the package -> field -> default.
Defaults = dict[str, dict[str, Any]]


def field_defaults(package: str) -> Defaults:
    """Those that are numbers, texts or truths, and which a class does not inherit.

    Modules whose libraries are not installed here are left out, and so is ``__main__``.
    """
    found: Defaults = {}
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.endswith(".__main__"):
            for kind in _classes(module.name):
                own = {name: value for name, value in _fields(kind) if type(value) in (bool, int, float, str)}
                if own:
                    found[f"{module.name.removeprefix(f'{package}.')}.{kind.__qualname__}"] = own
    return found


def _classes(module: str) -> list[type]:
    try:
        members = vars(importlib.import_module(module)).values()
    except ImportError:
        return []
    return [kind for kind in members if isinstance(kind, type) and kind.__module__ == module]


def _fields(kind: type) -> Iterator[tuple[str, Any]]:
    own: Mapping[str, Any] = vars(kind).get("__annotations__", {})
    names, values = getattr(kind, "__struct_fields__", ()), getattr(kind, "__struct_defaults__", ())
    pairs = zip(names[len(names) - len(values) :], values, strict=True)
    if dataclasses.is_dataclass(kind):
        pairs = ((field.name, field.default) for field in dataclasses.fields(kind))
    return ((name, value) for name, value in pairs if name in own)
