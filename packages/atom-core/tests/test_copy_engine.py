"""What the driver is asked for when a piece goes to another GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from atom_core.worker.ranks import copy_engine
from atom_core.worker.ranks.copy_engine import CopyEngine

KERNELS, BESIDE = 11, 22


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch):
    """Calls of the driver so far; each succeeds unless `failing` names it."""
    seen: list[tuple[object, ...]] = []

    def driver():
        return {name: lambda *given, name=name: seen.append((name, *given)) or failing.get(name, 0) for name in names}

    names, failing = copy_engine._CALLS, {}
    monkeypatch.setattr(copy_engine, "_driver", driver)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=BESIDE))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: KERNELS, raising=False)
    return SimpleNamespace(seen=seen, failing=failing)


def test_a_number_follows_its_piece_which_waits_for_the_kernels_before_it(calls):
    theirs, numbers, part = torch.zeros(8, 64, dtype=torch.uint8), torch.zeros(8, dtype=torch.int32), torch.ones(3, 4)
    engine = CopyEngine(theirs, numbers)
    calls.seen.clear()
    engine.carry(part, 5, 21)
    record, wait, copy, write = calls.seen
    assert (record[0], record[2]) == ("cuEventRecord", KERNELS)
    assert wait == ("cuStreamWaitEvent", BESIDE, record[1], 0)
    assert copy == ("cuMemcpyAsync", theirs.data_ptr() + 5 * 64, part.data_ptr(), 48, BESIDE)
    assert write == ("cuStreamWriteValue32_v2", BESIDE, numbers.data_ptr() + 20, 21, 0)


def test_kernels_that_follow_wait_until_all_is_copied(calls):
    engine = CopyEngine(torch.zeros(8, 64, dtype=torch.uint8), torch.zeros(8, dtype=torch.int32))
    calls.seen.clear()
    engine.settle()
    record, wait = calls.seen
    assert (record[0], record[2]) == ("cuEventRecord", BESIDE)
    assert wait == ("cuStreamWaitEvent", KERNELS, record[1], 0)


def test_a_call_that_fails_is_named(calls):
    engine = CopyEngine(torch.zeros(8, 64, dtype=torch.uint8), torch.zeros(8, dtype=torch.int32))
    calls.failing["cuMemcpyAsync"] = 700
    with pytest.raises(RuntimeError, match="cuMemcpyAsync of the CUDA driver failed with error 700"):
        engine.carry(torch.ones(4), 0, 1)
