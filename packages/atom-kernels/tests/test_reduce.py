"""Which kernel sums over ranks, from how many rows on the ranks' library does, and why."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.norm import RMSNormProblem, add_rms_norm
from atom_kernels.platform import Platform
from atom_kernels.protocols import NoPeers, SingleRank
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem, choice
from atom_kernels.reduce.buffers import BufferLayout, peers_over
from atom_kernels.select import select
from atom_kernels.tuned import TunedRow

H100 = Platform.nvidia("sm_90")
BFLOAT16 = torch.bfloat16


class Rank(SingleRank):
    """Rank 0 of so many, with memory that all see, and a library that doubles for two ranks."""

    def __init__(self, size: int = 2, max_bytes: int = 8 << 20) -> None:
        self.size = size
        buffers = [torch.zeros(1, dtype=torch.uint8) for _ in range(size)]
        self.peers = peers_over(buffers, 0, max_bytes)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.size

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat([x] * self.size, dim)


class Apart(Rank):
    def __init__(self) -> None:
        self.size, self.peers = 2, NoPeers("GPU 0 cannot reach GPU 1")


def rows_of(problem, platform=H100):
    return [(row.max_rows, row.backend, row.implementation) for row in select(ALL_REDUCE, problem, platform).rows]


def test_small_tensors_go_by_packets_larger_ones_by_shots_and_the_largest_to_the_library():
    rows = rows_of(AllReduceProblem(4096, BFLOAT16, Rank()))
    assert [backend for _, backend, _ in rows] == ["triton", "triton", "torch"]
    assert rows[0][2].endswith("packets")
    assert rows[0][0] < rows[1][0]
    assert rows[-1][0] is None


def test_more_ranks_send_less_by_packets():
    limits = [choice.limits("sm_90", size)["packets"] for size in (2, 4, 8)]
    assert sorted(limits, reverse=True) == limits


def test_measured_limits_come_before_the_rule(monkeypatch: pytest.MonkeyPatch):
    measured = {"2 ranks": (TunedRow(65536, {"method": "packets"}), TunedRow(1 << 20, {"method": "two shots"}))}
    monkeypatch.setattr(choice, "tuned_on_arch", lambda operator, arch: measured)
    rows = rows_of(AllReduceProblem(4096, BFLOAT16, Rank()))
    assert [(count, name.rpartition(", ")[2]) for count, _, name in rows[:2]] == [(8, "packets"), (128, "two shots")]
    passed = dict(select(ALL_REDUCE, AllReduceProblem(4096, BFLOAT16, Rank()), H100).passed_over)
    assert any("not the quickest of any size for 2 ranks" in reason for reason in passed.values())


def test_no_kernel_sums_more_than_its_memory_holds():
    rows = rows_of(AllReduceProblem(4096, BFLOAT16, Rank(max_bytes=64 << 10)))
    assert max(count for count, *_ in rows[:-1]) == (64 << 10) // 8192


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (AllReduceProblem(64, BFLOAT16, Apart()), "GPU 0 cannot reach GPU 1"),
        (AllReduceProblem(64, BFLOAT16, Rank(3)), "written for 2, 4, 8 ranks, not 3"),
        (AllReduceProblem(64, torch.float64, Rank()), "not torch.float64"),
        (AllReduceProblem(7, BFLOAT16, Rank()), "sends words of 4 bytes, and a row has 14"),
        (AllReduceProblem(64, BFLOAT16, SingleRank()), "these ranks exchange by their own library alone"),
    ],
)
def test_what_no_kernel_can_sum_goes_to_the_library_for_a_reason(problem, reason):
    plan = select(ALL_REDUCE, problem, H100)
    assert plan.rows[-1].backend == "torch"
    assert any(reason in said for _, said in plan.passed_over)


def test_rows_too_long_for_registers_are_normed_after_the_sum():
    plan = select(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(RMSNormProblem(20000, BFLOAT16), Rank()), H100)
    assert not plan.has_kernel
    assert any("holds a row of up to 16384" in said for _, said in plan.passed_over)


def test_the_library_sums_in_place():
    x = torch.ones(3, 4)
    select(ALL_REDUCE, AllReduceProblem(4, torch.float32, Apart())).prepare()(x)
    assert torch.equal(x, torch.full((3, 4), 2.0))


def test_the_library_sums_before_a_norm():
    x, residual, weight = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    plan = select(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(RMSNormProblem(4, torch.float32), Apart()))
    got = plan.prepare({"weight": weight})(x.clone(), residual)
    for mine, wanted in zip(got, add_rms_norm(2 * x, residual, weight, 1e-6), strict=True):
        assert torch.allclose(mine, wanted, atol=1e-6)


def test_parts_of_a_buffer_do_not_overlap_and_are_aligned():
    for size in (1, 2, 4, 8):
        layout = BufferLayout(size, 1 << 20)
        ends = [0, layout.packets, layout.parts, layout.sums, layout.slots, layout.numbers, layout.num_bytes]
        assert ends == sorted(ends)
        assert not any(end % 16 for end in ends)
        assert layout.sums - layout.parts == layout.slots - layout.sums == 2 * layout.max_bytes
        assert layout.numbers - layout.slots == (32 * layout.max_bytes if size == 2 else 0)
        assert layout.parts - layout.packets == 2 * size * layout.max_words * 8
