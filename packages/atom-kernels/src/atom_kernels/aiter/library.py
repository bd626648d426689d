"""`library()`: the installed AITER, imported once, whose functions adapters bind by the names of their parameters.

Releases differ in the order of their parameters: `bind` puts a call in order once, when a kernel is bound.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from atom_kernels.aiter.api import AiterApi, Parameter
from atom_kernels.aiter.functions import FUNCTIONS, AiterFunction
from atom_kernels.aiter.sources import AiterUnusableError, installed_api


class AiterCallError(RuntimeError):
    """An adapter wants to call a function in a way that this AITER does not allow; `supports` should have said so."""


class Library:
    """An imported AITER."""

    def __init__(self, package: Any, api: AiterApi) -> None:
        self.package = package
        self.api = api

    def has(self, name: str, *parameters: str) -> bool:
        """See `AiterApi.has`."""
        return self.api.has(name, *parameters)

    def function(self, name: str) -> Callable[..., Any]:
        """The function itself. Call it through `bind`, unless it is the same in every release.

        Raises:
            AiterCallError: this AITER does not have it.
        """
        reason, path = self.api.why_not(name), FUNCTIONS[name].path_in(self.api.release)
        if reason is not None or path is None:
            raise AiterCallError(reason or f"no place is known for {name}")
        module, _, attribute = path.partition(":")
        return operator.attrgetter(attribute)(importlib.import_module(module))

    def bind(self, name: str, *varying: str, **fixed: Any) -> Callable[..., Any]:
        """A call of a function: ``bind("silu_and_mul", "out", "input")(out, x)``.

        Args:
            name: in the table of functions.
            varying: parameters that are given at each call, in this order.
            fixed: parameters that are known now. One that this release lacks must have the value that leaves things
                as the release does them.

        Raises:
            AiterCallError: this AITER does not have the function or a parameter, or needs one that is not given.
        """
        function = self.function(name)
        return _order(name, function, FUNCTIONS[name], self.api.parameters(name) or (), varying, fixed)

    def enum(self, name: str, member: str) -> Any:
        """A member of one of AITER's enums: ``enum("ActivationType", "Silu")``. They are no IntEnums."""
        return getattr(getattr(self.package, name), member)


def library() -> Library:
    """The installed AITER; the first call imports it, which may take minutes where it compiles.

    Raises:
        AiterUnusableError: there is none that we can use; it says why.
    """
    if "aiter" not in sys.modules:
        installed_api()  # raises where it is not AMD's: that must not be imported
    try:
        package = importlib.import_module("aiter")
    except Exception as error:  # without ROCm it raises RuntimeError, and a broken build may raise anything
        raise AiterUnusableError(f"import aiter: {type(error).__name__}: {error}".splitlines()[0]) from error
    return _library_of(package)


@functools.lru_cache(maxsize=1)
def _library_of(package: ModuleType) -> Library:
    return Library(package, installed_api())


def _order(
    name: str,
    function: Callable[..., Any],
    entry: AiterFunction,
    parameters: Sequence[Parameter],
    varying: Sequence[str],
    fixed: Mapping[str, Any],
) -> Callable[..., Any]:
    known = [parameter.name for parameter in parameters]
    given: dict[str, Any] = {}
    slots: list[str] = []
    for ours in (*varying, *fixed):
        if ours not in entry.uses and ours not in entry.newer:
            raise AiterCallError(f"the table of AITER's functions does not say that {name} is called with {ours}")
        spelled = entry.spelled(ours, known)
        if spelled is not None:
            given[spelled] = fixed.get(ours)
        elif ours in varying or fixed[ours] != entry.newer[ours]:
            raise AiterCallError(f"{name} of this AITER takes no {ours}")
        if ours in varying and spelled is not None:
            slots.append(spelled)
    values, keywords = _fill(name, entry, parameters, given)
    return _make_call(function, values, keywords, [_place(slot, known, values) for slot in slots])


def _fill(
    name: str, entry: AiterFunction, parameters: Sequence[Parameter], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by position, gaps filled with AITER's defaults, and the arguments by keyword."""
    last = max((index for index, parameter in enumerate(parameters) if parameter.name in given), default=-1)
    values: list[Any] = []
    keywords: dict[str, Any] = {}
    has_gap = False
    for parameter in parameters[: last + 1]:
        if parameter.name in given:
            if has_gap or parameter.keyword_only:
                keywords[parameter.name] = given[parameter.name]
            else:
                values.append(given[parameter.name])
        elif parameter.default is None:
            raise AiterCallError(f"{name} needs {parameter.name}, which is not given")
        elif not has_gap and not parameter.keyword_only:
            try:
                values.append(ast.literal_eval(parameter.default))
            except ValueError:  # an expression, such as a member of an enum: not a value that we can pass
                has_gap = True
    needed = [parameter.name for parameter in parameters[last + 1 :] if parameter.default is None]
    if needed:
        raise AiterCallError(f"{name} needs {', '.join(needed)}, which is not given")
    if has_gap and keywords and not entry.keywords:
        raise AiterCallError(f"{name} is called by position only, and a default before {min(keywords)} is no literal")
    return values, keywords


def _place(slot: str, known: Sequence[str], values: Sequence[Any]) -> int | str:
    """Where a varying argument goes: its position, or its name where it goes by keyword."""
    index = known.index(slot)
    return index if index < len(values) else slot


def _make_call(
    function: Callable[..., Any], values: list[Any], keywords: dict[str, Any], places: Sequence[int | str]
) -> Callable[..., Any]:
    if list(places) == list(range(len(places))) and not keywords:
        tail = tuple(values[len(places) :])
        return (lambda *arguments: function(*arguments, *tail)) if tail else function

    def call(*arguments: Any) -> Any:
        positions, named = values.copy(), keywords.copy()
        for place, argument in zip(places, arguments, strict=True):
            if isinstance(place, int):
                positions[place] = argument
            else:
                named[place] = argument
        return function(*positions, **named)

    return call
