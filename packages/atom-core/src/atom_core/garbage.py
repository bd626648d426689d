"""Python's collection of garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Leaves garbage of this process alone until the end of the block; nothing changes where collection was off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def kept_for_good() -> Iterator[None]:
    """What is imported in the block stays for as long as this process lives: garbage is never looked for among it.

    For processes of our own alone. Torch is 170,000 objects, and to go through them takes a tenth of an engine's start;
    with transformers it is a third of the life of a process that converts a file.
    """
    with no_collection():
        try:
            yield
        finally:
            gc.freeze()  # before anything could look
