"""Every request may take so long and no longer, whatever it does meanwhile."""

from __future__ import annotations

import time

import msgspec
import pytest

from atom_core import SamplingParams, StructuredOutputParams
from atom_core.config import ConfigError, EngineArgs
from atom_core.engine.deadlines import Deadlines
from atom_core.messages import EngineRequest
from clock import Clock

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


def request(name, arrival):
    return EngineRequest(name, [1], SamplingParams(), arrival_time=arrival)


def test_a_request_expires_so_long_after_its_arrival_and_is_told_once():
    clock = Clock()
    deadlines = Deadlines(5.0, clock)
    deadlines.add(request("a", clock()))
    clock.now += 1
    deadlines.add(request("b", clock()))
    clock.now += 3.9
    assert deadlines.take_expired() == []
    clock.now += 0.1
    assert deadlines.take_expired() == ["a"]
    clock.now += 1
    assert deadlines.take_expired() == ["b"]
    assert deadlines.take_expired() == []


def test_without_a_limit_nothing_expires_or_is_kept():
    deadlines = Deadlines(None, Clock())
    deadlines.add(request("a", -1e9))
    assert deadlines.take_expired() == []
    assert not deadlines._open


class Later(Clock):
    """The clock of the machine, and `now` seconds on top."""

    def __call__(self) -> float:
        return time.monotonic() + self.now


@pytest.fixture
def late(engine):
    """The shared engine with a limit that nobody reaches, and the clock that it goes by."""
    before, clock = engine._core._deadlines, Later()
    engine._core._deadlines = Deadlines(1000.0, clock)
    yield engine, clock
    engine._core._deadlines = before


@pytest.mark.parametrize("num_steps", [0, 1, 4], ids=["waiting", "prefilling", "decoding"])
def test_what_takes_too_long_ends_with_an_error_in_any_phase_and_gives_its_blocks_back(late, num_steps):
    engine, clock = late
    engine.add_request([[5] * 40], [LONG])
    for _ in range(num_steps):
        assert engine.step() == []
    clock.now += 1000
    [output] = engine.step()
    assert output["finish_reason"] == "error"
    assert output["error"] == "it was not finished within 1000 s (max_request_seconds)"
    engine.abort([])  # collects what is in flight
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    assert engine.is_finished()


def test_one_that_waits_for_its_grammar_ends_too(late):
    engine, clock = late
    engine.add_request([[5, 6]], [SamplingParams(structured_outputs=StructuredOutputParams(regex="[a-f]+"))])
    clock.now += 1000
    [output] = engine.step()
    assert output["error"].startswith("it was not finished")


def test_one_that_came_later_goes_on(late):
    engine, _ = late
    engine.add_request([[5, 6]], [LONG])
    engine.step()
    engine.add_request([[5, 6]], [msgspec.structs.replace(LONG, max_tokens=4)])
    deadlines = engine._core._deadlines
    deadlines._open[0] = (0.0, deadlines._open[0][1])
    finished = []
    while not engine.is_finished():
        finished += engine.step()
    assert sorted(output["finish_reason"] for output in finished) == ["error", "length"]


def test_the_limit_is_a_setting_of_every_engine(make_engine):
    [output] = make_engine(max_request_seconds=0.001).generate([[5] * 40], LONG)
    assert output["error"].startswith("it was not finished within 0.001 s")
    with pytest.raises(ConfigError, match="max_request_seconds is 0"):
        EngineArgs(max_request_seconds=0)
