"""Makes ``import mori`` find the emulator, whose processes are the threads of a `Group`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from thread_ranks import Group

TREE = Path(__file__).resolve().parent.parent / "mori_emulator"


@contextmanager
def emulated_mori() -> Iterator[None]:
    """``import mori`` and ``importlib.metadata.version("amd-mori")`` answer with the emulator inside of the block."""
    sys.path.insert(0, str(TREE))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(TREE))
        for name in [name for name in sys.modules if name.split(".")[0] == "mori"]:
            del sys.modules[name]
        importlib.invalidate_caches()


def as_process(group: Group, rank: int) -> Any:
    """This thread is a process of that rank to MORI; the group's collectives of it."""
    ranks, here = group.as_rank(rank), importlib.import_module("mori.process").here
    here.rank, here.size, here.name = rank, group.size, ranks.name
    here.exchange, here.has_joined = group.exchange, False
    return ranks
