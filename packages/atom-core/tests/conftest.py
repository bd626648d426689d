"""Engines for the tests of this package: small caches, float32, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine
from shared_ranks import SharedRanks

MakeEngine = Callable[..., LLMEngine]

SMALL = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 32, "num_threads": 1, "seed": 0}


@pytest.fixture
def make_engine(tiny_llama: Path) -> Iterator[MakeEngine]:
    """``make_engine(model=tiny_llama, **overrides)`` gives an engine that is closed after the test."""
    engines: list[LLMEngine] = []

    def make(model: Path | str = tiny_llama, **overrides: Any) -> LLMEngine:
        engines.append(LLMEngine(str(model), **{**SMALL, **overrides}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[LLMEngine]:
    """One engine for the tests of a module that change nothing about it."""
    with LLMEngine(str(tiny_llama), **SMALL) as engine:
        yield engine


@pytest.fixture(scope="session")
def ranks() -> Iterator[SharedRanks]:
    """Two processes that share models by tensors: to start them takes longer than most tests of them."""
    processes = SharedRanks(tensor_parallel_size=2)
    yield processes
    processes.end()
