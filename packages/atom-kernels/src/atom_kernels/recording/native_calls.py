"""Runs of calls of C that one call makes: Python does nothing between them, and is other threads' meanwhile."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np

# A function, its arguments, and what it answered.
Call = tuple[Callable[..., Any], Sequence[Any], Any]

# `struct call` of native/replay.c.
_MOST_WHOLE, _MOST_REAL = 32, 8
_CALL = np.dtype(
    [
        ("function", np.uint64),
        ("whole", np.int64, _MOST_WHOLE),
        ("real", np.uint64, _MOST_REAL),
        ("answers", np.int64),
        ("answer", np.int64),
    ]
)
_WHOLE = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
_REAL = {ctypes.c_float: "<f", ctypes.c_double: "<d"}
# Their functions take arguments as native/replay.c says.
_MACHINES = ("x86_64", "aarch64")


def joined(calls: Sequence[Call]) -> list[Callable[[], None]]:
    """The calls in their order, those of C that follow each other as one; each raises MemoryError by another answer."""
    replay, steps = _replay(), []
    for is_native, run in groupby(calls, _is_native):
        if is_native and replay is not None:
            steps.append(_NativeCalls(replay, list(run)))
        else:
            steps += [partial(_call, *call) for call in run]
    return steps


class _NativeCalls:
    """They were seen by `_is_native`."""

    def __init__(self, replay: Callable[..., int], calls: Sequence[Call]) -> None:
        packed_calls = np.zeros(len(calls), dtype=_CALL)
        for packed, (function, arguments, answer) in zip(packed_calls, calls, strict=True):
            packed["function"] = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
            whole = [each.value or 0 for each in arguments if isinstance(each, _WHOLE)]
            packed["whole"][: len(whole)] = [_signed(value) for value in whole]
            real = [_bits(each) for each in arguments if type(each) in _REAL]
            packed["real"][: len(real)] = real
            if answer is not None:
                packed["answers"], packed["answer"] = 1, answer
        self._run = partial(replay, ctypes.c_void_p(packed_calls.ctypes.data), ctypes.c_int64(len(calls)))
        # Functions and arguments may keep what their addresses lead to.
        self._packed_calls, self._calls = packed_calls, calls

    def __call__(self) -> None:
        if self._run() != len(self._calls):
            raise _no_memory()


def _is_native(call: Call) -> bool:
    """Whether it is of a function of C, all of whose arguments are converted and have places."""
    function, arguments, _ = call
    types = [type(each) for each in arguments]
    num_real = sum(each in _REAL for each in types)
    return (
        getattr(function, "restype", False) in (None, ctypes.c_int64)
        and num_real + sum(each in _WHOLE for each in types) == len(types)
        and num_real <= _MOST_REAL
        and len(types) - num_real <= _MOST_WHOLE
    )


@cache
def _replay() -> Any:
    """`replay_calls` of native/replay.c; None where there is none."""
    from atom_kernels.native import load_native, native_unavailable

    if sys.platform != "linux" or platform.machine() not in _MACHINES or native_unavailable("replay"):
        return None
    return load_native("replay", {"replay_calls": "pl->l"}).replay_calls


def _call(function: Callable[..., Any], arguments: Sequence[Any], answer: Any) -> None:
    if function(*arguments) != answer:
        raise _no_memory()


def _no_memory() -> MemoryError:
    return MemoryError("a recorded kernel found no memory for what it unpacks")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bits(number: Any) -> int:
    return int.from_bytes(struct.pack(_REAL[type(number)], number.value), "little")
