"""`watch_compilations`: tells of every kernel that a thread meets for the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from triton import knobs


def watch_compilations(tell: Callable[[], None]) -> None:
    """Have `tell` called whenever this thread compiles a kernel, or loads one that was compiled before.

    Kernels that others compile are theirs, those of `compile_ahead` among them. Whoever listened before goes on.
    """
    thread, before = threading.get_ident(), knobs.compilation.listener

    def listen(**compiled: Any) -> None:
        if threading.get_ident() == thread:
            tell()
        if before is not None:
            before(**compiled)

    knobs.compilation.listener = listen
