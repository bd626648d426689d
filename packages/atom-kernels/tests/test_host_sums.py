"""Sums over ranks through memory that they share: ranks are threads here, and the C kernel lets go of Python."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from atom_kernels.native import native_unavailable
from atom_kernels.norm import RMSNormProblem
from atom_kernels.norm.contract import add_rms_norm
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import NoPeers, SingleRank
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem
from atom_kernels.reduce.host_memory import num_bytes, ranks_over
from atom_kernels.reduce.native import SUM_BACKEND
from atom_kernels.select import select

pytestmark = pytest.mark.skipif(native_unavailable("reduce") is not None, reason="the C kernels do not compile here")
MAX_BYTES = 256


class Rank(SingleRank):
    def __init__(self, peers: Any) -> None:
        self.rank, self.size, self.peers = peers.rank, peers.size, peers


def ranks_of(size: int) -> list[Rank]:
    memory = torch.zeros(num_bytes(size, MAX_BYTES), dtype=torch.uint8)
    return [Rank(peers) for peers in ranks_over(memory, size, MAX_BYTES)]


def on_all(ranks: list[Rank], work: Any) -> list[Any]:
    """What `work(rank)` gives on every rank at once."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(work, ranks))


def sum_of(ranks: list[Rank], size: int, dtype: torch.dtype) -> Any:
    plans = {rank.rank: select(ALL_REDUCE, AllReduceProblem(size, dtype, rank), detect_platform()) for rank in ranks}
    assert {plan.rows[0].backend for plan in plans.values()} == {"native"}
    kernels = {rank: plan.prepare() for rank, plan in plans.items()}

    def run(x_of: list[torch.Tensor]) -> list[torch.Tensor]:
        given = [x.clone() for x in x_of]
        on_all(ranks, lambda rank: kernels[rank.rank](given[rank.rank]))
        return given

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_ranks", "rows", "size"), [(2, 1, 5), (2, 3, 33), (3, 7, 40), (4, 2, 16)])
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(dtype, num_ranks, rows, size):
    run = sum_of(ranks_of(num_ranks), size, dtype)
    for seed in range(5):  # calls take turns in the same memory
        generator = torch.Generator().manual_seed(seed)
        x_of = [torch.randn(rows, size, generator=generator).to(dtype) for _ in range(num_ranks)]
        total = torch.zeros(rows, size)
        for x in x_of:
            total += x.float()
        for found in run(x_of):
            assert torch.equal(found, total.to(dtype))


def test_calls_may_follow_each_other_at_once():
    ranks, count = ranks_of(2), 300
    kernels = [
        select(ALL_REDUCE, AllReduceProblem(8, torch.float32, rank), detect_platform()).prepare() for rank in ranks
    ]

    def work(rank: Rank) -> list[float]:
        found = []
        for call in range(count):
            x = torch.full((1, 8), float(call * (rank.rank + 1)))
            kernels[rank.rank](x)
            found.append(float(x[0, 0]))
        return found

    assert on_all(ranks, work) == [[3.0 * call for call in range(count)]] * 2


def test_a_sum_and_a_norm_are_what_they_are_one_after_the_other():
    ranks, norm = ranks_of(2), RMSNormProblem(24, torch.float32, 1e-5)
    weights = {"weight": torch.randn(24)}
    kernels = [
        select(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(norm, rank), detect_platform()).prepare(weights)
        for rank in ranks
    ]
    x_of, residual = [torch.randn(3, 24) for _ in ranks], torch.randn(3, 24)
    expected = add_rms_norm(x_of[0] + x_of[1], residual, weights["weight"], 1e-5)
    for found in on_all(ranks, lambda rank: kernels[rank.rank](x_of[rank.rank].clone(), residual)):
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_ranks_without_shared_memory_say_why():
    problem = AllReduceProblem(8, torch.float32, SingleRank())
    assert SUM_BACKEND.why_not(problem, detect_platform()) == SingleRank.peers.reason
    assert isinstance(SingleRank.peers, NoPeers)


@pytest.mark.parametrize(
    ("x", "says"),
    [(torch.zeros(2, 9), "9"), (torch.zeros(8, 2).t(), "contiguous"), (torch.zeros(2, 8).half(), "float16")],
)
def test_what_it_was_not_planned_for_is_refused(x, says):
    [rank, _] = ranks_of(2)
    kernel = select(ALL_REDUCE, AllReduceProblem(8, torch.float32, rank), detect_platform()).prepare()
    with pytest.raises((ValueError, TypeError, RuntimeError), match=says):
        kernel(x)
