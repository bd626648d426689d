"""`launch` and `QuickLaunch`: the ways in which our Triton kernels are launched.

Code that prepares or records launches instead says so here, for its own thread; Triton's classes stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Launch = Callable[..., object]
"""``(kernel, grid, *arguments, **options)``"""

_instead: ContextVar[Launch | None] = ContextVar("instead_of_launches", default=None)


def launch(kernel: Any, grid: tuple[int, ...], /, *arguments: Any, **options: Any) -> None:
    """``kernel[grid](*arguments, **options)``; `options` are the kernel's constants and Triton's own."""
    instead = _instead.get()
    if instead is None:
        # What `kernel[grid]` does, less the function that it would make for each launch.
        kernel.run(*arguments, grid=grid, warmup=False, **options)
    else:
        instead(kernel, grid, *arguments, **options)


class QuickLaunch:
    """Launches one kernel again and again on the host's shortest way.

    Triton finds out at each launch which of its compilations fits the arguments, which takes a host a tenth of a
    millisecond for twenty of them. Here those that are alike in all that Triton looks at share what it found.

    Args:
        kernel: a function of ``triton.jit``.
        constants: its constants, which come last among its parameters, in their order.
    """

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        """``kernel[grid](*arguments, **constants)``; arguments are tensors of one device, and integers."""
        if _instead.get() is not None:
            launch(self._kernel, grid, *arguments, **self._constants)
            return
        kind = tuple(_kind(argument) for argument in arguments)
        compiled = self._compiled.get(kind)
        if compiled is None:
            # None again where kernels are interpreted.
            self._compiled[kind] = self._kernel.run(*arguments, grid=grid, warmup=False, **self._constants)
        else:
            compiled[grid](*arguments, *self._constants.values())


def _kind(argument: Any) -> Any:
    """All that decides which compilation fits: the alignment and dtype of a tensor, the value of an integer."""
    return argument if isinstance(argument, int) else (argument.dtype, argument.data_ptr() % 16, argument.device)


@contextmanager
def launches_go_to(instead: Launch) -> Iterator[None]:
    """Within, each launch of this thread calls `instead`, which gets all that `launch` got, and launches nothing."""
    before = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(before)
