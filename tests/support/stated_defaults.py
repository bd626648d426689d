"""The defaults that users and authors of models meet: of fields of classes, and of parameters of functions."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

# "module.Class", "module.function" or "module.Class.method", without the package -> field or parameter -> default.
Defaults = dict[str, dict[str, Any]]


def stated_defaults(package: str, modules: Sequence[str]) -> Defaults:
    """Those that are numbers, texts or truths, of the modules of a package that fit one of the patterns.

    Fields that a class inherits are left out, and so are private functions.
    """
    names = (module.name for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."))
    wanted = [name for name in names if any(fnmatchcase(name, f"{package}.{pattern}") for pattern in modules)]
    found: Defaults = {}
    for module in wanted:
        for name, pairs in _members(module):
            own = {key: value for key, value in pairs if type(value) in (bool, int, float, str)}
            if own:
                found[f"{module.removeprefix(f'{package}.')}.{name}"] = own
    return found


def _members(module: str) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    for member in vars(importlib.import_module(module)).values():
        if getattr(member, "__module__", None) != module:
            continue
        if inspect.isclass(member):
            yield member.__qualname__, _fields(member)
            for method in vars(member).values():
                yield from _parameters(getattr(method, "__func__", method))
        yield from _parameters(member)


def _fields(kind: type) -> Iterator[tuple[str, Any]]:
    own: Mapping[str, Any] = vars(kind).get("__annotations__", {})
    names, values = getattr(kind, "__struct_fields__", ()), getattr(kind, "__struct_defaults__", ())
    pairs = zip(names[len(names) - len(values) :], values, strict=True)
    if dataclasses.is_dataclass(kind):
        pairs = ((field.name, field.default) for field in dataclasses.fields(kind))
    return ((name, value) for name, value in pairs if name in own)


def _parameters(function: Any) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    """The name and the parameters of a function, if somebody wrote it and others may call it; else nothing."""
    if not inspect.isfunction(function) or function.__code__.co_filename == "<string>":
        return
    name = function.__name__
    if not name.startswith("_") or name in ("__init__", "__call__"):
        parameters = inspect.signature(function).parameters.values()
        yield function.__qualname__, ((each.name, each.default) for each in parameters)
