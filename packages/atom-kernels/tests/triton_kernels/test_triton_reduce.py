"""Sums over ranks by our kernels: ranks are processes of this machine, whose kernels the interpreter runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.norm import RMSNormProblem, add_rms_norm
from atom_kernels.platform import detect_platform
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem
from atom_kernels.reduce.choice import METHODS
from atom_kernels.select import plan_with
from atom_kernels.settings import triton_interpret
from forked_ranks import run_ranks, shared_tensor

interpreted = pytest.mark.skipif(not triton_interpret(), reason="ranks on a GPU are in tests/gpu of atom-core")
# Python 3.12 warns that another thread of a process that forks may hold a lock; ranks take none of this process.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

MAX_BYTES = 64 << 10
# More tiles than a group of ranks, the last one not full; a row that is no power of two.
ROWS, HIDDEN = 3, 700


def parts(size: int, dtype: torch.dtype, call: int = 0, rows: int = ROWS) -> list[torch.Tensor]:
    """What each rank has to sum; one of them is far larger, so that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(call)
    drawn = torch.randn(size, rows, HIDDEN, generator=generator)
    drawn[0] *= 300
    return list(drawn.to(dtype))


def in_order(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float32)
    for part in tensors:
        total += part.float()
    return total.to(tensors[0].dtype)


def backend(operator, method):
    return next(one for one in operator.backends if one.implementation.endswith(method))


def kernel_of(operator, problem, method, weights=None):
    return plan_with(operator, problem, backend(operator, method)).prepare(weights or {})


@pytest.mark.parametrize("name", ["all_reduce", "all_reduce_add_rms_norm"])
def test_one_rank_alone_agrees_with_the_reference_at_odd_shapes(name):
    operator = {one.name: one for one in (ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM)}[name]
    small = dataclasses.replace(operator, parity_rows=(1, 5))
    count = 0
    for case in parity_cases(small, detect_platform(), only_backend="triton"):
        problem = mismatch(case.run(), case.expected(), case.tolerance)
        assert problem is None, f"{case.backend} on {case.label}: {problem}"
        count += 1
    assert count > 30


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_has_the_bits_of_the_sum_in_the_order_of_ranks(size, dtype):
    wanted = in_order(parts(size, dtype))
    results = shared_tensor(size * len(METHODS) * wanted.nbytes).view(dtype).view(size, len(METHODS), ROWS, HIDDEN)

    def work(rank):
        for place, method in enumerate(METHODS):
            x = parts(size, dtype)[rank.rank]
            kernel_of(ALL_REDUCE, AllReduceProblem(HIDDEN, dtype, rank), method)(x)
            results[rank.rank, place] = x

    run_ranks(size, MAX_BYTES, work)
    for place, method in enumerate(METHODS):
        # The interpreter cuts numbers off to bfloat16, which here and on GPUs are rounded.
        error = 2**-7 if dtype is torch.bfloat16 else 0.0
        assert torch.allclose(results[0, place].float(), wanted.float(), rtol=error, atol=0.0), method
        for rank in range(1, size):
            assert torch.equal(results[rank, place], results[0, place]), f"{method}, rank {rank}"


@interpreted
def test_a_fused_norm_gives_what_sum_and_norm_give_apart():
    norm = RMSNormProblem(HIDDEN, torch.float16, 1e-5, 1.0)
    weight, residual = torch.randn(HIDDEN).half(), torch.randn(ROWS, HIDDEN).half()
    normed, total = add_rms_norm(in_order(parts(2, torch.float16)), residual, weight, norm.eps, weight_offset=1.0)
    results = shared_tensor(2 * len(METHODS) * 2 * total.nbytes).view(torch.float16)
    results = results.view(2, len(METHODS), 2, ROWS, HIDDEN)

    def work(rank):
        for place, method in enumerate(METHODS):
            problem = AllReduceNormProblem(norm, rank)
            kernel = kernel_of(ALL_REDUCE_ADD_RMS_NORM, problem, method, {"weight": weight})
            got = kernel(parts(2, torch.float16)[rank.rank], residual)
            results[rank.rank, place] = torch.stack(got)

    run_ranks(2, MAX_BYTES, work)
    for place, method in enumerate(METHODS):
        assert torch.equal(results[0, place], results[1, place]), method
        assert torch.equal(results[0, place, 1], total), method
        assert mismatch(results[0, place, 0], normed, ALL_REDUCE_ADD_RMS_NORM.tolerance(norm)) is None, method


@interpreted
def test_calls_of_other_sizes_and_methods_follow_each_other_over_the_same_memory():
    rows = (1, 5, 2, 9, 1, 3, 5)
    results = shared_tensor(2 * len(rows))

    def work(rank):
        kernels = [kernel_of(ALL_REDUCE, AllReduceProblem(HIDDEN, torch.float32, rank), method) for method in METHODS]
        for call, count in enumerate(rows):
            given = parts(2, torch.float32, call, count)
            x = given[rank.rank].clone()
            kernels[call % 3](x)
            results[2 * call + rank.rank] = torch.equal(x, in_order(given))

    run_ranks(2, MAX_BYTES, work)
    assert results.tolist() == [1] * len(results)
