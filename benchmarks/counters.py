"""Microseconds of the counting that no flag turns off, each call by itself."""

from __future__ import annotations

import argparse
import timeit
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from benchmarks import overhead

# Looks at the event loop in a second.
_LOOKS = 20
_CALLS = 2000


def us_per_step(batch_size: int, step_ms: float) -> dict[str, float]:
    """What counting takes of a step of `step_ms` that gives `batch_size` requests a token each, by process.

    Returns ``server``: tokens are counted, and how late the loop is; ``engine``: a step's counts are put together and
    written for the server.
    """
    from atom_server.observe.metrics import Metrics

    engine = cast(Any, SimpleNamespace(engines=[SimpleNamespace(rank=0)]))
    metrics = Metrics(engine, prefix="atom", model_name="m")
    token = _us(lambda: metrics.take_news(0, 1, 0.01))
    look = _us(lambda: metrics.loop_lag.observe(0.0001))
    options = argparse.Namespace(context=16, vocab_size=64, threads=1)
    core = overhead.make_engine(batch_size, 64, options=options)
    try:
        overhead.start_decoding(core, batch_size, 32, sampling={"temperature": 0.0}, options=options)
        counts = _us(lambda: msgspec.msgpack.encode(core.stats()))
    finally:
        core.close()
    return {"server": batch_size * token + look * _LOOKS * step_ms / 1e3, "engine": counts}


def _us(call: Any) -> float:
    """Microseconds of a call: the least of a few runs, since others' work only adds."""
    return 1e6 * min(timeit.repeat(call, number=_CALLS, repeat=5)) / _CALLS
