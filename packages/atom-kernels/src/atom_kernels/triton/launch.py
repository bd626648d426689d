"""`launch`: the one function that launches our Triton kernels.

Code that prepares or records launches instead says so here, for its own thread; Triton's classes stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from atom_kernels.triton.known_launches import known_launches

# Called with (kernel, grid, *arguments, **options).
_instead: ContextVar[Callable[..., object] | None] = ContextVar("instead_of_launches", default=None)


def launch(kernel: Any, grid: tuple[int, ...], /, *arguments: Any, **options: Any) -> None:
    """``kernel[grid](*arguments, **options)``; `options` are the kernel's constants and Triton's own."""
    instead = _instead.get()
    if instead is not None:
        instead(kernel, grid, *arguments, **options)
    elif (known := known_launches()) is not None:
        known.run(kernel, grid, arguments, options)
    else:
        # What `kernel[grid]` does, less the function that it would make for each launch.
        kernel.run(*arguments, grid=grid, warmup=False, **options)


@contextmanager
def launches_go_to(instead: Callable[..., object]) -> Iterator[None]:
    """Within, each launch of this thread calls `instead`, which gets all that `launch` got, and launches nothing."""
    before = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(before)
