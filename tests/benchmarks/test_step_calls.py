"""How many Python functions a step calls: what an engine adds to a model, counted where seconds would be noise."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from benchmarks import overhead

# All requests cross the border of a block once in so many steps.
STEPS = 16
FEW, MANY = 1, 9


class CallCounter:
    """Counts calls of Python functions in this thread and in those begun within `watching`, while `is_on`."""

    def __init__(self) -> None:
        self.count, self.is_on = 0, False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += self.is_on and event == "call"

    @contextmanager
    def watching(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def calls_per_step(batch_size: int, sampling: dict[str, Any]) -> float:
    options = argparse.Namespace(context=32, vocab_size=64, threads=1)
    counter = CallCounter()
    with counter.watching():
        engine = overhead.make_engine(batch_size, 128, options=options)
        overhead.start_decoding(engine, batch_size, 64, sampling=sampling, options=options)
        engine.settle()
        counter.is_on = True
        for _ in range(STEPS):
            engine.step()
        engine.settle()
        counter.is_on = False
        engine.close()
    return counter.count / STEPS


@pytest.mark.parametrize("sampling", overhead.SAMPLING.values(), ids=overhead.SAMPLING)
def test_a_step_of_decodes_calls_few_functions_for_itself_and_for_each_request(sampling: dict[str, Any]):
    """Whoever passes these bounds by something that few requests use had better look only where it is used."""
    few, many = (calls_per_step(size, sampling) for size in (FEW, MANY))
    of_each_request = (many - few) / (MANY - FEW)
    assert of_each_request < 14
    assert few - FEW * of_each_request < 215
