"""`running`: an `AsyncEngine` of a tiny model for ``async with``; `until` waits for a fact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from atom_core import AsyncEngine, EngineArgs


def small_args(model: Path, **options: Any) -> EngineArgs:
    small = {"dtype": "float32", "num_kv_blocks": 128, "max_num_seqs": 16, "num_threads": 1, "seed": 0}
    return EngineArgs(model=str(model), **{**small, **options})


@asynccontextmanager
async def running(model: Path, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(small_args(model, **options))
    try:
        yield engine
    finally:
        await engine.shutdown()


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
