"""Microseconds of counting and of telling, each call by itself: what a busy machine hides in whole steps shows here."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from benchmarks import overhead
from benchmarks.watchers import Collector, Subscriber

if TYPE_CHECKING:
    from atom_server.request_log import RequestRecord

# Looks at the event loop in a second.
_LOOKS = 20
_CALLS = 500
_BLOCK_SIZE = 16


def counting_us(batch_size: int, step_ms: float) -> dict[str, float]:
    """What no flag turns off takes of a step of `step_ms` that gives `batch_size` requests a token each, by process.

    Returns ``server``: tokens are counted, and how late the loop is; ``engine``: a step's counts are put together and
    written for the server.
    """
    metrics = _metrics()
    token = _us(lambda: metrics.tokens.take(0, 1, 0.01))
    look = _us(lambda: metrics.loop_lag.observe(0.0001))
    options = argparse.Namespace(context=16, vocab_size=64, threads=1)
    core = overhead.make_engine(batch_size, 64, options=options)
    try:
        overhead.start_decoding(core, batch_size, 32, sampling={"temperature": 0.0}, options=options)
        counts = _us(lambda: msgspec.msgpack.encode(core.stats()))
    finally:
        core.close()
    return {"server": batch_size * token + look * _LOOKS * step_ms / 1e3, "engine": counts}


def telling_us(batch_size: int, step_ms: float, num_tokens: int) -> dict[str, float]:
    """What each of `watchers.KINDS` takes of such a step, where answers have `num_tokens` tokens."""
    from atom_server.request_log import RequestRecord

    record = RequestRecord("id", "POST", "/v1/chat/completions", status=200, answer_id="a", prompt_tokens=64)
    requests, metrics = batch_size / num_tokens, _metrics()
    return {
        "log": requests * _log_us(record),
        "metrics": step_ms / 1e3 * _us(metrics.text, calls=20),
        "traces": requests * _span_us(record),
        "events": batch_size / _BLOCK_SIZE * _event_us(),
    }


def _metrics() -> Any:
    from atom_server.observe.metrics import Metrics

    status = SimpleNamespace(rank=0, stats=None, info=None, state="serving", num_restarts=0)
    engine = SimpleNamespace(engines=[status], control=SimpleNamespace(is_paused=False, sleep_level=0))
    return Metrics(cast(Any, engine), prefix="atom", model_name="m")


def _log_us(record: RequestRecord) -> float:
    """A request's line of JSON; the line for people has less in it."""
    from atom_server.observe.request_file import RequestFile

    with tempfile.TemporaryDirectory() as folder, RequestFile(str(Path(folder) / "requests")) as file:
        return 2 * _us(lambda: file.write(record))


def _span_us(record: RequestRecord) -> float:
    """A request's span until it has been sent, with the collector's own work."""
    from atom_server.observe.traces import Traces

    collector = Collector()
    try:
        traces, begun = Traces.to(collector.address, "m"), time.process_time()
        for _ in range(_CALLS):
            traces.take(record, {})
        traces.close()
        return 1e6 * (time.process_time() - begun) / _CALLS
    finally:
        collector.close()


def _event_us() -> float:
    """A block that is stored, in a message of its own."""
    from atom_core.kv_events.config import KVEventsConfig
    from atom_core.kv_events.publisher import KVEventPublisher
    from atom_core.kv_events.recorder import KVEventRecorder
    from atom_kernels.protocols import Pages

    subscriber = Subscriber()
    publisher = KVEventPublisher(KVEventsConfig(enable_kv_cache_events=True, endpoint=subscriber.endpoint))
    recorder, name, tokens = KVEventRecorder(_BLOCK_SIZE, [Pages()]), os.urandom(32), list(range(_BLOCK_SIZE + 1))

    def tell() -> None:
        recorder.stored(0, name, name, tokens)
        publisher.publish(recorder.take())

    try:
        return _us(tell)
    finally:
        publisher.close()
        subscriber.close()


def _us(call: Callable[[], object], *, calls: int = _CALLS) -> float:
    """Microseconds of a call: the least of a few runs, since others' work only adds."""
    return 1e6 * min(timeit.repeat(call, number=calls, repeat=5)) / calls
