"""What our adapters ask of AITER, call by call, and a guard against what a captured graph could not hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from atom_kernels.aiter.library import Library

# Methods that bring a value to the host: a graph would keep what they gave when it was captured.
HOST_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
# Operators whose output's size is a value, or which copy from fresh host memory (`torch.tensor`).
SYNCHRONIZING = (
    "_local_scalar_dense",
    "nonzero",
    "nonzero_static",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "bincount",
    "equal",
    "is_nonzero",
    "lift_fresh",
    "repeat_interleave",
)


class NotCapturableError(AssertionError):
    """Code did what a graph cannot hold."""


class Calls(list[tuple[str, Any]]):
    """The name and arguments of each call of AITER: tensors by shape, strides and dtype, all else by value."""

    @property
    def names(self) -> set[str]:
        """Functions that were called."""
        return {name for name, _ in self}


@contextlib.contextmanager
def recorded_calls() -> Iterator[Calls]:
    """Records the calls of kernels that are bound inside."""
    calls, original = Calls(), Library.function

    def function(self: Library, name: str) -> Callable[..., Any]:
        inner = original(self, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls.append((name, _described((arguments, named))))
            # The emulator may compute in any way: the rules are for the adapters.
            with _outside():
                return inner(*arguments, **named)

        return call

    Library.function = function
    try:
        yield calls
    finally:
        Library.function = original


@contextlib.contextmanager
def only_what_graphs_hold(allowed: frozenset[str] = frozenset()) -> Iterator[None]:
    """Raises `NotCapturableError` for reads on the host, sizes by value and copies from fresh host memory.

    Kernels must have been bound in `recorded_calls`. `allowed` are names of `HOST_READS` or `SYNCHRONIZING`.
    """
    with _patched([name for name in HOST_READS if name not in allowed]), _Guard(allowed):
        yield


class _Guard(TorchDispatchMode):
    def __init__(self, allowed: frozenset[str]) -> None:
        super().__init__()
        self._forbidden = frozenset(SYNCHRONIZING) - allowed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in self._forbidden or by_mask:
            raise NotCapturableError(f"aten.{name}")
        return func(*args, **(kwargs or {}))


_inside_aiter = 0


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    global _inside_aiter
    _inside_aiter += 1
    try:
        with _disable_current_modes():
            yield
    finally:
        _inside_aiter -= 1


@contextlib.contextmanager
def _patched(names: list[str]) -> Iterator[None]:
    originals = {name: getattr(torch.Tensor, name) for name in names}

    def guarded(name: str) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            if not _inside_aiter:
                raise NotCapturableError(f"Tensor.{name}")
            return originals[name](tensor, *arguments, **named)

        return read

    for name in names:
        setattr(torch.Tensor, name, guarded(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(_described(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _described(item)) for key, item in sorted(value.items()))
    return value
