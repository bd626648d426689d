"""How AITER's Python meets its C++: functions that show no signature and check the types of their arguments."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from . import machine
from .enums import BoundEnum

Function = TypeVar("Function", bound=Callable[..., Any])


def in_kernel() -> bool:
    """Whether this thread is inside of an emulated function: what it allocates and reads is not its caller's."""
    return machine.called.get() is not None


@contextmanager
def _entered(function: Callable[..., Any]) -> Iterator[None]:
    token = machine.called.set(machine.release_of(function.__code__.co_filename))
    try:
        yield
    finally:
        machine.called.reset(token)


def emulated(function: Function) -> Function:
    """A function that AITER writes in Python (wrappers of Triton kernels): signature and types as they are."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        with _entered(function):
            return function(*args, **kwargs)

    return typing.cast(Function, entered)


def compile_ops(module: str, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Stands for AITER's decorator: calls are checked against the annotations, as the bound C++ function does."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        hints: dict[str, Any] = {}

        @functools.wraps(function)
        def bound(*args: Any, **kwargs: Any) -> Any:
            hints.update(hints or typing.get_type_hints(function))
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in hints and not fits(value, hints[name]):
                    raise TypeError(f"{function.__name__}: {name} needs to be {hints[name]} but got {type(value)}")
            with _entered(function):
                return function(*args, **kwargs)

        # What users of the real one see: the C++ function's parameters are not there for `inspect`.
        del bound.__wrapped__
        return bound

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
