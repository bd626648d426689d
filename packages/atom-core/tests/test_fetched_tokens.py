"""Sampled ids reach the host late: the worker goes on, and whoever wants them waits."""

from __future__ import annotations

import pytest
import torch

from atom_core.worker.devices.cpu import Cpu
from atom_core.worker.devices.gpu import read_late


class Copied:
    """Stands for an event of the device: the copy is done when somebody waits for it, or it fails."""

    def __init__(self, ids: torch.Tensor, arriving: list[int], error: str | None = None) -> None:
        self._ids, self._arriving, self._error = ids, arriving, error

    def synchronize(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)
        self._ids.copy_(torch.tensor(self._arriving))


def test_on_a_cpu_ids_are_there_at_once():
    ids = torch.tensor([5, 3])
    fetched = Cpu().fetch(ids)
    ids.zero_()
    assert fetched() == [5, 3]


def test_late_ids_are_read_after_their_copy():
    ids = torch.zeros(2, dtype=torch.int64)
    assert read_late(ids, Copied(ids, [8, 9])) == [8, 9]


def test_an_error_of_the_device_comes_out_where_the_ids_are_asked_for():
    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        read_late(ids, Copied(ids, [], error="an illegal memory access"))
