"""How AITER's Python meets its C++: functions that show no signature and check the types of their arguments."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from .enums import BoundEnum


def compile_ops(module: str, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Stands for AITER's decorator: calls are checked against the annotations, as the bound C++ function does."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        hints: dict[str, Any] = {}

        @functools.wraps(function)
        def bound(*args: Any, **kwargs: Any) -> Any:
            hints.update(hints or typing.get_type_hints(function))
            arguments = signature.bind(*args, **kwargs)
            for name, value in arguments.arguments.items():
                if name in hints and not fits(value, hints[name]):
                    raise TypeError(f"{function.__name__}: {name} needs to be {hints[name]} but got {type(value)}")
            return function(*args, **kwargs)

        # What users of the real one see: the C++ function's parameters are not there for `inspect`.
        del bound.__wrapped__
        return bound

    decorate.module = module
    return decorate


def fits(value: Any, hint: Any) -> bool:
    """Whether pybind takes `value` for a parameter of type `hint`: an int is a float and an enum, a float is no int."""
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if origin in (list, tuple):
        return isinstance(value, (list, tuple))
    if hint is type(None) or hint is None:
        return value is None
    if hint is float:
        return isinstance(value, (int, float))
    if isinstance(hint, type) and issubclass(hint, BoundEnum):
        return isinstance(value, (hint, int))
    return isinstance(value, hint)
