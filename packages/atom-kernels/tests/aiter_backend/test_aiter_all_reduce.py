"""Sums over ranks by AITER, alone and with a norm, against the reference; ranks are threads of this process."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch

from aiter_calls import only_what_graphs_hold, recorded_calls
from amd_machine import amd_machine
from atom_kernels.aiter.all_reduce import MAX_BYTES, share_memory, why_not_shared
from atom_kernels.aiter.norm import norm_tolerance
from atom_kernels.cases import mismatch
from atom_kernels.norm import RMSNormProblem
from atom_kernels.norm.contract import add_rms_norm
from atom_kernels.platform import Platform
from atom_kernels.protocols import AiterMemory, SingleRank
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem
from atom_kernels.reduce.buffers import peers_over
from atom_kernels.select import select
from summing_aiter_ranks import Rank, in_order, on_ranks, parts_of, told_by
from thread_ranks import Group

HALF, FLOAT = torch.bfloat16, torch.float32


def memory(size: int = 2) -> AiterMemory:
    return AiterMemory(0, size, 0, 0, MAX_BYTES)


@pytest.fixture(autouse=True, scope="module")
def known_operators() -> None:
    """The first who prepares an operator makes it known to torch, which two threads must not do at a time."""
    select(ALL_REDUCE, AllReduceProblem(16, HALF, SingleRank())).prepare()
    normed = AllReduceNormProblem(RMSNormProblem(16, FLOAT), SingleRank())
    select(ALL_REDUCE_ADD_RMS_NORM, normed).prepare({"weight": torch.ones(16)})


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_kernels.aiter.all_reduce.MAX_BYTES", 1 << 20)


def plan_of(op: Any, problem: Any, release: str = "git") -> Any:
    return select(op, problem, Platform.rocm("gfx942", release=release, device="cpu"))


@pytest.mark.parametrize("dtype", [HALF, torch.float16, FLOAT])
@pytest.mark.parametrize("size", [2, 4, 6, 8])
def test_every_rank_has_the_sum_of_all_call_after_call(size: int, dtype: torch.dtype):
    calls = [parts_of(size, rows, 24, dtype, seed=rows) for rows in (1, 3, 70)]

    def work(rank: Rank) -> list[torch.Tensor]:
        plan = plan_of(ALL_REDUCE, AllReduceProblem(24, dtype, rank))
        assert (plan.rows[0].backend, plan.rows[0].max_rows) == ("aiter", (1 << 20) // (24 * dtype.itemsize))
        kernel, found = plan.prepare(), [parts[rank.rank].clone() for parts in calls]
        for x in (*found, found[0][:0]):
            kernel(x)
        return found

    for found in on_ranks(size, work):
        assert all(torch.equal(x, in_order(parts)) for x, parts in zip(found, calls, strict=True))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("size", "hidden"), [(2, 512), (2, 2880), (4, 1024), (8, 2880), (2, 16384)])
def test_a_sum_with_a_norm_is_that_of_the_reference(size: int, hidden: int, offset: float):
    """From rows of one kernel to those of two, which begin above 128 KiB."""
    problem = RMSNormProblem(hidden, HALF, 1e-5, offset)
    weight = (torch.randn(hidden, generator=torch.Generator().manual_seed(9)) * 0.1 + 1).to(HALF)
    calls = [parts_of(size + 1, rows, hidden, HALF, seed=rows) for rows in (1, 5, (128 << 10) // (2 * hidden) + 1)]

    def work(rank: Rank) -> list[Any]:
        plan = plan_of(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(problem, rank))
        assert plan.rows[0].backend == "aiter"
        kernel = plan.prepare({"weight": weight})
        return [kernel(parts[rank.rank].clone(), parts[-1]) for parts in calls]

    expected = [add_rms_norm(in_order(parts[:-1]), parts[-1], weight, 1e-5, weight_offset=offset) for parts in calls]
    for found in on_ranks(size, work):
        for pair, wanted in zip(found, expected, strict=True):
            assert mismatch(pair, wanted, norm_tolerance(problem)) is None


def test_kernels_of_both_ways_serve_strided_residuals_and_no_rows_at_all():
    parts = parts_of(3, 6, 512, HALF)

    def work(rank: Rank) -> Any:
        problem = AllReduceNormProblem(RMSNormProblem(512, HALF), rank)
        kernel = plan_of(ALL_REDUCE_ADD_RMS_NORM, problem).prepare({"weight": torch.ones(512, dtype=HALF)})
        residual = torch.stack([parts[2]] * 2, dim=1)[:, 0]
        assert not residual.is_contiguous()
        return kernel(parts[rank.rank], residual), kernel(parts[0][:0], residual[:0])

    for (_, total), nothing in on_ranks(2, work):
        assert torch.equal(total, in_order(parts[:2]) + parts[2])
        assert [tuple(one.shape) for one in nothing] == [(0, 512)] * 2


def test_sums_do_nothing_that_a_graph_cannot_hold():
    group, x = Group(2), torch.ones(4, 512, dtype=HALF)

    def bind(rank: int) -> list[Any]:
        ranks = group.as_rank(rank)
        peers = share_memory(rank, 2, **told_by(ranks))
        normed = AllReduceNormProblem(RMSNormProblem(512, HALF), Rank(peers))
        return [
            plan_of(ALL_REDUCE, AllReduceProblem(512, HALF, Rank(peers))).prepare(),
            plan_of(ALL_REDUCE_ADD_RMS_NORM, normed).prepare({"weight": torch.ones(512, dtype=HALF)}),
        ]

    def call(kernels: list[Any]) -> None:
        kernels[0](x.clone())
        kernels[1](x.clone(), x)

    with amd_machine(), recorded_calls() as calls:
        kernels = group.run(bind)
        calls.clear()
        other = threading.Thread(target=call, args=(kernels[1],))
        other.start()
        with only_what_graphs_hold():
            call(kernels[0])
        other.join()
    assert calls.names == {"all_reduce", "fused_allreduce_rmsnorm"}


REFUSALS = [
    (ALL_REDUCE, AllReduceProblem(12, HALF, Rank(memory())), "sums packs of 16 bytes, and a row has 24"),
    (ALL_REDUCE, AllReduceProblem(64, torch.float64, Rank(memory())), "float64"),
    (ALL_REDUCE, AllReduceProblem(64, HALF, SingleRank()), "exchange by their own library alone"),
    (ALL_REDUCE, AllReduceProblem(64, HALF, Rank(peers_over([torch.zeros(1)] * 2, 0, 64))), "memory of another kind"),
]
NORMED_REFUSALS = [
    (RMSNormProblem(1024, HALF), 6, "is written for 2, 4, 8 ranks, not 6"),
    (RMSNormProblem(1024, FLOAT), 2, "for bfloat16 and float16, not torch.float32"),
    (RMSNormProblem(2888, HALF), 8, "a row of 5776 bytes is no packs of 16 for each of 8 ranks"),
    (RMSNormProblem(256, HALF), 2, "norms rows of 512 to 16384 elements, not 256"),
    (RMSNormProblem(16400, HALF), 2, "norms rows of 512 to 16384 elements, not 16400"),
    (RMSNormProblem(1024, HALF, weight_offset=0.5), 2, "adds 1 to the weight or nothing, not 0.5"),
]
REFUSALS += [
    (ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(norm, Rank(memory(size))), words)
    for norm, size, words in NORMED_REFUSALS
]


@pytest.mark.parametrize(("op", "problem", "words"), REFUSALS, ids=[words for _, _, words in REFUSALS])
def test_what_aiter_does_not_sum_goes_to_the_next_with_a_reason(op: Any, problem: Any, words: str):
    plan = select(op, problem, Platform.rocm("gfx942"))
    [reason] = [reason for name, reason in plan.passed_over if name.startswith("aiter")]
    assert words in reason
    assert "aiter" not in [row.backend for row in plan.rows]


def test_kernels_of_ours_do_not_sum_in_memory_of_aiter():
    plan = select(ALL_REDUCE, AllReduceProblem(12, HALF, Rank(memory())), Platform.rocm("gfx942"))
    reasons = {reason for name, reason in plan.passed_over if name.startswith("triton")}
    assert reasons == {"these ranks share memory of another kind"}


@pytest.mark.parametrize(
    ("size", "release", "words"),
    [
        (2, "git", None),
        (3, "git", "AITER sums over 2, 4, 6, 8 ranks, not 3"),
        (2, "pypi", "amd-aiter .* has no meta_size"),
    ],
)
def test_ranks_share_memory_of_aiter_where_it_can_sum_for_them(size: int, release: str, words: str | None):
    reason = why_not_shared(size, Platform.rocm("gfx942", release=release, device="cpu"))
    assert reason is None if words is None else re.search(words, reason or "")


def test_a_platform_without_aiter_has_its_own_reason():
    assert "aiter" in (why_not_shared(2, Platform.nvidia("sm_90")) or "").lower()


def test_a_tensor_that_was_not_planned_is_refused():
    def work(rank: Rank) -> None:
        kernel = plan_of(ALL_REDUCE, AllReduceProblem(16, HALF, rank)).prepare()
        with pytest.raises(TypeError, match="float32"):
            kernel(torch.zeros(2, 16))
        with pytest.raises(ValueError, match="must be contiguous"):
            kernel(torch.zeros(16, 2, dtype=HALF).T)

    on_ranks(2, work)
