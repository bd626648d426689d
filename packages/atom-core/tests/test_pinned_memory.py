"""What travels between host and device at every step: words to it, and results that whoever wants them waits for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom_core.worker.devices import pinned
from atom_core.worker.devices.cpu import Cpu
from atom_core.worker.devices.pinned import Pinned, Results, Uploads

CPU = torch.device("cpu")


def words(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_on_a_cpu_ids_are_there_at_once():
    ids = torch.tensor([5, 3])
    fetched = Cpu().fetch(ids)
    ids.zero_()
    assert fetched() == [5, 3]


def test_results_that_nobody_has_read_yet_keep_their_memory():
    results = Results(CPU)
    first, second = results.fetch(torch.tensor([1, 2])), results.fetch(torch.tensor([3]))
    vectors = results.fetch(torch.tensor([[0.5, 1.5]]))
    assert (second(), first(), vectors()) == ([3], [1, 2], [[0.5, 1.5]])


def test_memory_serves_again_once_it_was_read_and_grows_with_the_results(monkeypatch):
    made: list[int] = []
    monkeypatch.setattr(pinned, "Pinned", lambda size, *about: made.append(size) or Pinned(size, *about))
    results = Results(CPU)
    for number in range(5):
        assert results.fetch(torch.tensor([number]))() == [number]
    assert made == [1024]
    assert results.fetch(torch.arange(1500))() == list(range(1500))
    assert made == [1024, 2048]


def test_an_error_of_the_device_comes_out_where_the_ids_are_asked_for(monkeypatch):
    def fail(self: Pinned) -> None:
        raise RuntimeError("an illegal memory access")

    fetched = Results(CPU).fetch(torch.tensor([4]))
    monkeypatch.setattr(Pinned, "wait", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        fetched()


def test_words_travel_one_array_behind_the_other_and_stay_until_the_next_call():
    uploads = Uploads(CPU, num_words=4)
    sent = uploads.send(words(1, 2), words(), words(3))
    assert sent.tolist() == [1, 2, 3]
    assert uploads.send(words(7)).data_ptr() == sent.data_ptr()
    assert sent.tolist() == [7, 2, 3]


def test_more_words_than_there_is_room_for_travel_too():
    assert Uploads(CPU, num_words=4).send(words(1, 2, 3), words(4, 5)).tolist() == [1, 2, 3, 4, 5]


def test_memory_is_written_again_only_when_the_copies_of_its_half_are_done(monkeypatch):
    uploads, done = Uploads(CPU, num_words=2), []
    monkeypatch.setattr(Pinned, "launched", lambda self: done.append(self.memory.clone()))
    waits: list[list[int]] = []
    monkeypatch.setattr(Pinned, "wait", lambda self: waits.append(self.memory[::2].tolist()))
    for number in range(1, 26):
        uploads.send(words(number))
    # What a wait finds is what its half has had since it was told of, or nothing yet.
    told = [memory[::2].tolist() for memory in done]
    assert told == [list(range(first, first + 8)) for first in (1, 9, 17)]
    assert waits[1:] == told[: len(waits) - 1]
