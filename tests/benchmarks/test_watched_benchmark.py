"""A server that is watched is measured beside one that is not, and what watching costs is found."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from benchmarks import counters, machine, watched
from benchmarks.__main__ import main
from benchmarks.timing import Timings
from benchmarks.watchers import KINDS, Watchers


@pytest.mark.slow  # spans come after five seconds
def test_both_are_timed_and_everyone_who_watches_hears_something(tiny_llama: Path, tmp_path: Path):
    output = tmp_path / "result.json"
    flags = f"--model {tiny_llama} --dtype float32 --batch-sizes 3 --context 16 --turns 1 --steps 4 --output {output}"
    assert main(["watched", *flags.split()]) == 0

    document = json.loads(output.read_text())
    [result] = document["results"]
    assert document["settings"]["watch"] == ["log", "metrics", "traces", "events"]
    assert {name: side["num_steps"] for name, side in result["sides"].items()} == {"unwatched": 8, "watched": 4}
    assert sum(used for side in result["sides"].values() for used in side["cpu_ms"].values()) > 0


def test_what_a_watcher_never_heard_of_was_not_measured(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("benchmarks.watchers._LATE_SECONDS", 0.0)
    watchers = Watchers(["log", "traces", "events"], tmp_path)
    try:
        (tmp_path / "requests.jsonl").write_text("{}")
        with pytest.raises(RuntimeError, match="nothing was heard of traces, events"):
            watchers.check()
    finally:
        watchers.close()


def test_what_is_not_watched_needs_no_flags_and_is_not_waited_for(tmp_path: Path):
    watchers = Watchers([], tmp_path)
    watchers.check()
    watchers.close()
    assert watchers.flags == []


def test_processor_time_counts_from_each_turn_to_the_next(monkeypatch):
    readings = iter([1.0, 10.0, 1.5, 10.2, 2.1, 10.2])  # of the server and of the engine, at two turns and the end
    monkeypatch.setattr(machine, "cpu_seconds", lambda pids: next(readings))
    used = watched.ProcessorTime([7, 8])
    used.mark()
    used.mark()
    assert used.ms_per_step(10) == {"server": 55.0, "engine": 10.0}


def test_the_processor_time_of_a_process_that_spins_is_its_time():
    begun, used = time.process_time(), machine.cpu_seconds([os.getpid()])
    while time.process_time() - begun < 0.3:
        pass
    assert machine.cpu_seconds([os.getpid()]) - used == pytest.approx(0.3, abs=0.15)


def test_counting_and_what_is_watched_are_told_as_a_share_of_a_step(monkeypatch):
    monkeypatch.setattr(counters, "counting_us", lambda batch_size, step_ms: {"server": 30.0, "engine": 10.0})
    monkeypatch.setattr(counters, "telling_us", lambda *_: {"log": 20.0, "metrics": 1e6})
    timings = {name: Timings([[seconds] * 4] * 2) for name, seconds in (("unwatched", 0.01), ("watched", 0.0102))}
    cpu_ms = {"unwatched": {"server": 1.0, "engine": 9.0}, "watched": {"server": 1.2, "engine": 9.5}}
    result = watched.result_of(16, 48, timings, cpu_ms, kinds=["log"])
    assert result["share_apart"] == pytest.approx(0.006)
    assert result["added"]["median"] == pytest.approx(0.02)
    assert result["added_cpu_ms"] == {"server": 0.2, "engine": 0.5}


def test_counting_costs_more_for_more_tokens():
    few, many = (counters.counting_us(batch_size, 10.0) for batch_size in (1, 64))
    assert many["server"] > 8 * few["server"] > 0
    assert few["engine"] > 0


def test_what_is_told_of_each_request_costs_a_step_less_where_answers_are_longer():
    short, long = (counters.telling_us(16, 10.0, num_tokens) for num_tokens in (10, 1000))
    assert set(short) == set(KINDS)
    assert min(long.values()) > 0
    assert all(short[kind] > 8 * long[kind] for kind in ("log", "traces"))
