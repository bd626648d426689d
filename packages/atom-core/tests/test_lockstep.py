"""Engines that share their experts agree on each step, and hear of each other's end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from atom_core import EngineDeadError
from atom_core.engine import lockstep
from atom_core.engine.lockstep import Lockstep
from atom_core.worker.ranks.meeting import Engines
from engines_together import at_once

SIZE = 3


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Lockstep]]:
    found = [Lockstep(tmp_path, Engines(number, SIZE)) for number in range(SIZE)]
    at_once([one.meet for one in found])
    yield found
    for one in found:
        one.close()


def test_all_engines_hear_the_rows_of_each_in_every_step(engines: list[Lockstep]):
    for step in range(20):
        agreed = at_once([partial(one.agree, 10 * step + number) for number, one in enumerate(engines)])
        assert agreed == [(10 * step, 10 * step + 1, 10 * step + 2)] * SIZE
    assert not any(one.is_called for one in engines)


def test_who_begins_a_step_calls_the_others(engines: list[Lockstep]):
    called = threading.Event()
    engines[2].on_call(called.set)
    beginning = threading.Thread(target=engines[0].agree, args=(5,))
    beginning.start()
    assert called.wait(30)
    assert engines[2].is_called
    assert not engines[0].is_called
    assert at_once([partial(one.agree, 0) for one in engines[1:]]) == [(5, 0, 0)] * 2
    beginning.join()
    assert not engines[2].is_called


def test_an_engine_that_is_gone_is_heard_of_by_those_that_wait_and_by_those_that_do_not(engines: list[Lockstep]):
    called = threading.Event()
    engines[0].on_call(called.set)
    engines[1].close()
    assert called.wait(30)
    assert engines[0].failure is not None
    assert engines[0].failure.cause == "engine 1 is gone, and had experts that the others need"
    for alive in (engines[0], engines[2], engines[0]):  # and nobody waits for another one that is there
        with pytest.raises(EngineDeadError, match="engine 1 is gone"):
            alive.agree(1)


def test_an_engine_that_does_not_answer_is_named(engines: list[Lockstep], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lockstep, "AGREE_SECONDS", 0.1)
    with pytest.raises(EngineDeadError, match=r"engine 0 has not answered for 0 s, and shares its experts"):
        engines[1].agree(1)


def test_an_end_that_is_heard_of_a_moment_later_still_explains_what_broke(engines: list[Lockstep]):
    leaves = threading.Timer(0.1, engines[1].close)
    leaves.start()
    lost = engines[0].lost()
    leaves.join()
    assert lost is not None
    assert lost.cause.startswith("engine 1 is gone")


def test_an_error_of_its_own_is_not_blamed_on_engines_that_are_there(
    engines: list[Lockstep], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lockstep, "_LOST_SECONDS", 0.05)
    assert engines[0].lost() is None
