"""Sums over ranks as operators: kernels over memory that ranks share, else the library of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.aiter import all_reduce as aiter_all_reduce
from atom_kernels.dtypes import FLOATS
from atom_kernels.norm import ADD_RMS_NORM, RMSNormProblem
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.protocols import SINGLE_RANK, SingleRank
from atom_kernels.reduce.buffers import BufferLayout, peers_over
from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem, all_reduce, all_reduce_add_rms_norm
from atom_kernels.reduce.native import SUM_BACKEND, SUM_NORM_BACKEND
from atom_kernels.reduce.rounded import ALL_REDUCE_ROUNDED_ADD_RMS_NORM
from atom_kernels.reduce.triton_backend import SUM_BACKENDS, SUM_NORM_BACKENDS
from atom_kernels.select import select
from atom_kernels.tolerances import elementwise_tolerance

# Enough for what is checked of one rank.
_CHECKED_BYTES = 1 << 20


class _RankAlone(SingleRank):
    """One rank that exchanges with itself: what the kernels do beside waiting."""

    def __init__(self) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        buffer = torch.zeros(BufferLayout(1, _CHECKED_BYTES).num_bytes, dtype=torch.uint8, device=device)
        self.peers = peers_over([buffer], 0, _CHECKED_BYTES)


def _bind_library(problem: AllReduceProblem, weights: Any) -> Callable[[torch.Tensor], None]:
    ranks = problem.ranks

    def run(x: torch.Tensor) -> None:
        summed = ranks.all_reduce(x)
        if summed is not x:
            x.copy_(summed)

    return run


def _bind_library_and_norm(problem: AllReduceNormProblem, weights: Any) -> Callable[..., Any]:
    add_norm, ranks = select(ADD_RMS_NORM, problem.norm).prepare(weights), problem.ranks
    return lambda x, residual: add_norm(ranks.all_reduce(x), residual)


def _make_inputs(problem: Any, num_rows: int, generator: torch.Generator) -> Any:
    is_normed = isinstance(problem, AllReduceNormProblem)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    weights = {"weight": random(problem.hidden_size) * 0.1 + 1} if is_normed else {}
    return weights, tuple(random(num_rows, problem.hidden_size) for _ in range(2 if is_normed else 1))


def _problems() -> tuple[AllReduceProblem, ...]:
    ranks = _RankAlone()
    return tuple(AllReduceProblem(size, dtype, ranks) for size in (2, 66, 1000) for dtype in FLOATS)


def _normed_problems() -> tuple[AllReduceNormProblem, ...]:
    plain = [AllReduceNormProblem(RMSNormProblem(p.hidden_size, p.dtype), p.ranks) for p in _problems()]
    return (*plain, AllReduceNormProblem(RMSNormProblem(96, torch.bfloat16, 1e-5, 1.0), plain[0].ranks))


def _work(problem: Any, num_rows: int, *, tensors: int) -> Work:
    return Work(tensors * num_rows * problem.hidden_size * problem.dtype.itemsize)


ALL_REDUCE = Op(
    name="all_reduce",
    contract=all_reduce,
    reference=lambda problem, weights, x: all_reduce(x, problem.ranks),
    schema="(Tensor(a!) x) -> ()",
    fake=lambda problem, x: None,
    backends=(
        aiter_all_reduce.SUM_BACKEND,
        *SUM_BACKENDS,
        SUM_BACKEND,
        Backend(name="torch", implementation="all-reduce of the ranks' library", bind=_bind_library),
    ),
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (AllReduceProblem(4096, torch.bfloat16, SINGLE_RANK),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: _work(problem, num_rows, tensors=2),
    written=(0,),
)

ALL_REDUCE_ADD_RMS_NORM = Op(
    name="all_reduce_add_rms_norm",
    contract=all_reduce_add_rms_norm,
    reference=lambda problem, weights, x, residual: all_reduce_add_rms_norm(
        x.clone(),
        residual,
        weights["weight"],
        problem.norm.eps,
        ranks=problem.ranks,
        weight_offset=problem.norm.weight_offset,
    ),
    # The ranks' library overwrites x.
    schema="(Tensor(a!) x, Tensor residual) -> (Tensor, Tensor)",
    fake=lambda problem, x, residual: (torch.empty_like(x), torch.empty_like(x)),
    backends=(
        aiter_all_reduce.SUM_NORM_BACKEND,
        *SUM_NORM_BACKENDS,
        SUM_NORM_BACKEND,
        Backend(name="torch", implementation="all-reduce of the ranks' library, norm", bind=_bind_library_and_norm),
    ),
    weights=lambda problem: {"weight": WeightSpec((problem.hidden_size,), problem.dtype)},
    make_inputs=_make_inputs,
    parity_problems=_normed_problems,
    examples=lambda: (AllReduceNormProblem(RMSNormProblem(4096, torch.bfloat16), SINGLE_RANK),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: _work(problem, num_rows, tensors=4),
)

OPS = (ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, ALL_REDUCE_ROUNDED_ADD_RMS_NORM)
