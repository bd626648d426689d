"""Ranks share memory for their sums, or say why they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atom_core.worker.devices.factory import device_of
from atom_core.worker.ranks import peers
from atom_core.worker.ranks.meeting import Place
from atom_core.worker.ranks.peers import share_memory
from atom_core.worker.ranks.protocol import MeetingRanks
from atom_kernels.aiter import all_reduce
from atom_kernels.platform import Platform, use_platform
from atom_kernels.protocols import AiterMemory, HostMemory, NoPeers, PeerMemory


def same(number: int) -> int:
    """What ranks agree on that all say the same."""
    return number


def meeting(
    devices: tuple[int, ...] = (0, 1), hosts: tuple[str, ...] = ("", "", "", ""), smallest: Callable[[int], int] = same
) -> MeetingRanks:
    places = tuple(map(Place, hosts, devices))
    return MeetingRanks(0, len(devices), places, "0", smallest, lambda x, dim: torch.cat([x] * len(devices), dim))


def shared(**given: Any) -> Any:
    return share_memory(meeting(**given))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch):
    """A machine whose GPUs reach each other, and whose memory comes from here."""
    numbers = torch.zeros(2, dtype=torch.int64)
    memory = PeerMemory(0, 2, numbers, numbers.int(), 1024)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: other < 2)
    monkeypatch.setattr(peers, "_meet_by_torch", lambda ranks: memory)
    with use_platform(Platform.nvidia("sm_90")):
        yield memory


def test_gpus_that_reach_each_other_share_memory(two_gpus: PeerMemory):
    assert shared() is two_gpus


def test_ranks_on_several_nodes_exchange_by_nccl(two_gpus: PeerMemory):
    assert shared(hosts=("10.0.0.1", "10.0.0.2")).reason == "the ranks are on 2 nodes"


def test_ranks_on_one_host_map_the_same_memory():
    peers = device_of("cpu").share_memory(meeting())
    assert isinstance(peers, HostMemory)
    assert not peers.memory.any()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hosts": ("10.0.0.1", "10.0.0.2")}, "the ranks are on 2 nodes"),
        ({"smallest": lambda number: 0}, "another rank cannot share its memory"),
    ],
)
def test_ranks_that_share_no_memory_of_a_host_exchange_by_gloo(given, reason):
    assert device_of("cpu").share_memory(meeting(**given)) == NoPeers(reason)


def test_gpus_are_asked_by_their_device(two_gpus: PeerMemory):
    assert device_of("cuda").share_memory(meeting()) is two_gpus


@pytest.mark.parametrize(
    ("devices", "reason"),
    [((0, 1, 2, 3), "GPU 0 cannot reach the memory of GPU 2"), ((0, 1, 1), "for 2, 4, 8 ranks, not 3")],
)
def test_gpus_that_cannot_share_memory_are_named(two_gpus: PeerMemory, devices: tuple[int, ...], reason: str):
    assert reason in shared(devices=devices).reason


def test_the_environment_can_leave_all_sums_to_nccl(two_gpus: PeerMemory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATOM_DISABLE_PEER_SUMS", "1")
    assert shared().reason == "ATOM_DISABLE_PEER_SUMS is set"


def test_amd_gpus_exchange_by_aiter(monkeypatch: pytest.MonkeyPatch):
    met = AiterMemory(0, 2, 7, 4096, 1024)

    def share(rank: int, size: int, *, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        assert (rank, size, device) == (0, 2, torch.device("cuda", 0))
        assert gather(torch.arange(3)).tolist() == [[0, 1, 2]] * 2
        return met

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: True)
    monkeypatch.setattr(all_reduce, "share_memory", share)
    with use_platform(Platform.rocm("gfx942")):
        assert shared() is met
        assert shared(devices=(0, 1, 2)).reason == "AITER sums over 2, 4, 6, 8 ranks, not 3"


def test_amd_gpus_without_aiters_sums_leave_them_to_rccl():
    with use_platform(Platform.rocm("gfx942", release="pypi")):
        assert "has no meta_size" in shared().reason


def test_no_rank_shares_memory_that_another_does_not(two_gpus: PeerMemory):
    assert shared(smallest=lambda number: 0).reason == "another rank cannot share its memory"
    answers = iter((1, 0))
    assert shared(smallest=lambda number: next(answers)).reason == "another rank could not share its memory"


def test_a_failure_of_torchs_symmetric_memory_is_told(two_gpus: PeerMemory, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no\n handles")

    monkeypatch.setattr(peers, "_meet_by_torch", fail)
    assert shared().reason == "sharing memory failed: no handles"
