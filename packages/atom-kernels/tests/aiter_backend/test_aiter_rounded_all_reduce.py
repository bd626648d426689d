"""Sums over ranks that AITER norms and rounds in the same kernel, against the reference; ranks are threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from aiter_calls import only_what_graphs_hold, recorded_calls
from amd_machine import amd_machine
from atom_kernels.aiter.all_reduce import MAX_BYTES
from atom_kernels.cases import mismatch
from atom_kernels.formats import Float8, RowRounding
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.norm import RMSNormProblem, RoundedNormProblem
from atom_kernels.norm.rounded import rounded_add_rms_norm
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.protocols import AiterMemory, SingleRank
from atom_kernels.reduce import ALL_REDUCE_ROUNDED_ADD_RMS_NORM, RoundedAllReduceNormProblem
from atom_kernels.select import select
from summing_aiter_ranks import Rank, in_order, on_ranks, parts_of

BF16, F16 = torch.bfloat16, torch.float16
ROWS, GROUPS, COLUMNS = RowRounding(), RowRounding(128), RowRounding(128, by_column=True)
OP = ALL_REDUCE_ROUNDED_ADD_RMS_NORM
FUNCTIONS = {"fused_allreduce_rmsnorm_quant", "fused_allreduce_rmsnorm_quant_per_group"}


@pytest.fixture(autouse=True, scope="module")
def known_operator() -> None:
    """The first who prepares an operator makes it known to torch, which two threads must not do at a time."""
    select(OP, problem_of(SingleRank(), 16)).prepare({"weight": torch.ones(16, dtype=BF16)})


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_kernels.aiter.all_reduce.MAX_BYTES", 1 << 20)


def problem_of(
    ranks: Any, size: int = 512, rounding: RowRounding = ROWS, dtype: torch.dtype = BF16, **norm: float
) -> RoundedAllReduceNormProblem:
    return RoundedAllReduceNormProblem(RoundedNormProblem(RMSNormProblem(size, dtype, 1e-5, **norm), rounding), ranks)


def weight_of(size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(size, generator=torch.Generator().manual_seed(9)) * 0.3 + 1).to(dtype)


def uneven(size: int, rows: int, hidden: int, dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    """Parts of which each row and each group of a row has numbers of its own size."""
    factors = torch.arange(1, rows + 1)[:, None] * (1 + torch.arange(hidden) // 128)
    return [part.mul(factors).to(dtype) for part in parts_of(size, rows, hidden, dtype, seed=rows)]


@pytest.mark.parametrize("rounding", [ROWS, GROUPS, COLUMNS], ids=["rows", "groups", "groups by column"])
@pytest.mark.parametrize(
    ("size", "hidden", "dtype", "arch"),
    [(2, 256, BF16, "gfx942"), (4, 2560, F16, "gfx950"), (8, 7168, BF16, "gfx942"), (2, 8192, BF16, "gfx950")],
)
def test_a_sum_is_added_normed_and_rounded_as_the_reference_does_it(
    size: int, hidden: int, dtype: torch.dtype, arch: str, rounding: RowRounding
):
    """From rows of one kernel to those of two, which begin above 128 KiB."""
    weight = weight_of(hidden, dtype)
    counts = (1, 3, (128 << 10) // (2 * hidden) + 1)
    calls = [uneven(size + 1, rows, hidden, dtype) for rows in counts]

    def work(rank: Rank) -> list[Any]:
        plan = select(OP, problem_of(rank, hidden, rounding, dtype))
        assert (plan.rows[0].backend, plan.rows[0].max_rows) == ("aiter", ((1 << 20) - 1) // (2 * hidden))
        kernel = plan.prepare({"weight": weight})
        found = [kernel(parts[rank.rank].clone(), parts[-1]) for parts in calls]
        wanted = [rounded_add_rms_norm(in_order(parts[:-1]), parts[-1], weight, 1e-5, rounding) for parts in calls]
        return list(zip(found, wanted, strict=True))

    for results in on_ranks(size, work, arch):
        for got, wanted in results:
            assert (got[0].dtype, got[1].shape) == (wanted[0].dtype, wanted[1].shape)
            assert mismatch(got[1], wanted[1], Tolerance(0.0, 0.01)) is None
            if rounding is not COLUMNS:
                assert mismatch(OP.comparable(got), OP.comparable(wanted), OP.tolerance(None)) is None
            assert torch.equal(got[2], wanted[2])


@pytest.mark.parametrize(
    ("rounding", "form", "outputs"),
    [(ROWS, Float8(), 48), (COLUMNS, Float8(128, 128), 144), (GROUPS, Float8(128, 128), 136)],
)
def test_a_product_takes_what_the_ranks_have_rounded(rounding: RowRounding, form: Float8, outputs: int):
    problem = LinearProblem(
        256, outputs, BF16, True, weight_format=form, input_format=Float8(1, rounding.group), neighbors=True
    )
    parts, weight = uneven(3, 5, 256), weight_of(256)
    weights, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))

    def work(rank: Rank) -> torch.Tensor:
        kernel = select(OP, problem_of(rank, 256, rounding)).prepare({"weight": weight})
        codes, scale, _ = kernel(parts[rank.rank].clone(), parts[2])
        plan = select(LINEAR, problem)
        assert plan.row_rounding == rounding
        return plan.prepare(weights)(codes, None, 0.0, 0.0, None, scale)

    with amd_machine("gfx942"), torch.inference_mode():
        total = in_order(parts[:2]) + parts[2]
        normed = torch.nn.functional.rms_norm(total.float(), (256,), weight.float(), 1e-5).to(BF16)
        expected = select(LINEAR, problem).prepare(weights)(normed, None, 0.0, 0.0, None)
    for got in on_ranks(2, work):
        assert mismatch(got, expected, Tolerance(0.02 * expected.abs().max().item(), 0.02)) is None


def test_rows_may_lie_anywhere_be_small_or_be_none():
    parts = [part * 1e-3 for part in parts_of(3, 6, 512, BF16)]
    wide = torch.stack([parts[2]] * 2, dim=1)[:, 0]
    moved = torch.empty(6 * 512 + 1, dtype=BF16)[1:].view(6, 512).copy_(parts[2])

    def work(rank: Rank) -> Any:
        kernel = select(OP, problem_of(rank)).prepare({"weight": torch.ones(1024, dtype=BF16)[::2]})
        mine = parts[rank.rank]
        with pytest.raises(TypeError, match=r"given \[6, 512\] and a residual \[3, 512\]"):
            kernel(mine.clone(), parts[2][:3])
        with pytest.raises(TypeError, match="was planned for"):
            kernel(mine.float(), parts[2])
        wanted = rounded_add_rms_norm(in_order(parts[:2]), parts[2], torch.ones(512), 1e-5, ROWS)
        return wanted, [kernel(mine.clone(), residual) for residual in (wide, moved)], kernel(mine[:0], wide[:0])

    for wanted, found, nothing in on_ranks(2, work):
        for got in found:
            assert mismatch(got[1], wanted[1], Tolerance(0.0, 0.01)) is None
            assert torch.equal(got[2], wanted[2])
        assert [tuple(one.shape) for one in nothing] == [(0, 512), (0, 1), (0, 512)]


def test_it_does_nothing_that_a_graph_cannot_hold():
    roundings, x = (ROWS, COLUMNS), torch.ones(4, 512, dtype=BF16)
    gate = threading.Barrier(2)

    def work(rank: Rank) -> None:
        kernels = [
            select(OP, problem_of(rank, rounding=one)).prepare({"weight": torch.ones(512, dtype=BF16)})
            for one in roundings
        ]
        gate.wait()
        if rank.rank == 1:
            gate.wait()
            for kernel in kernels:
                kernel(x.clone(), x)
            return
        with only_what_graphs_hold():
            gate.wait()
            for kernel in kernels:
                kernel(x.clone(), x)

    with recorded_calls() as calls:
        on_ranks(2, work)
    assert calls.names >= FUNCTIONS


def memory(size: int = 2) -> Rank:
    return Rank(AiterMemory(0, size, 0, 0, MAX_BYTES))


REFUSALS = [
    (problem_of(memory(6)), "git", "quant is written for 2, 4, 8 ranks, not 6"),
    (problem_of(memory(), dtype=torch.float32), "git", "for bfloat16 and float16, not torch.float32"),
    (problem_of(memory(), rounding=RowRounding(64)), "git", "whole rows and groups of 128, not of 64"),
    (problem_of(memory(), 2880), "git", "norms rows of whole 256 elements up to 8192, not 2880"),
    (problem_of(memory(), 8448), "git", "norms rows of whole 256 elements up to 8192, not 8448"),
    (problem_of(memory(), weight_offset=1.0), "git", "for the weight as it is, not for weight + 1"),
    (problem_of(memory()), "pypi", "has no fused_allreduce_rmsnorm_quant"),
    (problem_of(memory(), rounding=GROUPS), "pypi", "has no fused_allreduce_rmsnorm_quant_per_group"),
    (problem_of(SingleRank()), "git", "exchange by their own library alone"),
]


@pytest.mark.parametrize(("problem", "release", "words"), REFUSALS, ids=[words for _, _, words in REFUSALS])
def test_what_aiter_does_not_round_goes_to_the_library_of_the_ranks(problem: Any, release: str, words: str):
    plan = select(OP, problem, Platform.rocm("gfx942", release=release))
    assert plan.rows[0].is_fallback
    [reason] = [reason for name, reason in plan.passed_over if name.startswith("aiter")]
    assert words in reason
