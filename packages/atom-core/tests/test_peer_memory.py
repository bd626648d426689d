"""Ranks share memory for their sums, or say why they do not."""

from __future__ import annotations

import pytest
import torch

from atom_core.worker.ranks import peers
from atom_core.worker.ranks.meeting import Place
from atom_core.worker.ranks.peers import share_memory
from atom_kernels.platform import Platform, use_platform
from atom_kernels.protocols import NoPeers, PeerMemory


def same(number: int) -> int:
    """What ranks agree on that all say the same."""
    return number


def shared(
    device: str = "cuda", devices: tuple[int, ...] = (0, 1), hosts: tuple[str, ...] = ("", "", "", ""), smallest=same
) -> PeerMemory | NoPeers:
    places = tuple(map(Place, hosts, devices))
    return share_memory(0, device=device, places=places, group="0", smallest=smallest)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch):
    """A machine whose GPUs reach each other, and whose memory comes from here."""
    numbers = torch.zeros(2, dtype=torch.int64)
    memory = PeerMemory(0, 2, numbers, numbers.int(), 1024)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: other < 2)
    monkeypatch.setattr(peers, "_meet", lambda *_: memory)
    with use_platform(Platform.nvidia("sm_90")):
        yield memory


def test_gpus_that_reach_each_other_share_memory(two_gpus: PeerMemory):
    assert shared() is two_gpus


def test_ranks_on_several_nodes_exchange_by_nccl(two_gpus: PeerMemory):
    assert shared(hosts=("10.0.0.1", "10.0.0.2")).reason == "the ranks are on 2 nodes"


def test_ranks_on_cpus_exchange_by_gloo():
    assert shared("cpu") == NoPeers("ranks on CPUs exchange by gloo")


@pytest.mark.parametrize(
    ("devices", "reason"),
    [((0, 1, 2, 3), "GPU 0 cannot reach the memory of GPU 2"), ((0, 1, 1), "for 2, 4, 8 ranks, not 3")],
)
def test_gpus_that_cannot_share_memory_are_named(two_gpus: PeerMemory, devices: tuple[int, ...], reason: str):
    assert reason in shared(devices=devices).reason


def test_the_environment_can_leave_all_sums_to_nccl(two_gpus: PeerMemory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATOM_DISABLE_PEER_SUMS", "1")
    assert shared().reason == "ATOM_DISABLE_PEER_SUMS is set"


def test_amd_gpus_do_not_use_kernels_for_nvidias():
    with use_platform(Platform.rocm("gfx942")):
        assert "for NVIDIA GPUs, this is gfx942" in shared().reason


def test_no_rank_shares_memory_that_another_does_not(two_gpus: PeerMemory):
    assert shared(smallest=lambda number: 0).reason == "another rank cannot share its memory"
    answers = iter((1, 0))
    assert shared(smallest=lambda number: next(answers)).reason == "another rank could not share its memory"


def test_a_failure_of_torchs_symmetric_memory_is_told(two_gpus: PeerMemory, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no\n handles")

    monkeypatch.setattr(peers, "_meet", fail)
    assert shared().reason == "torch's symmetric memory failed: no handles"
