"""Sums over ranks in C, through memory of the host that all of them have mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.norm import ADD_RMS_NORM
from atom_kernels.operator import Backend
from atom_kernels.protocols import HostMemory, NoPeers
from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem
from atom_kernels.select import select

# An engine ends ranks that hang long before.
_LIMIT_S = 3600.0
_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SIGNATURES = {f"sum_over_ranks_{suffix}": "plllpld->l" for suffix in _SUFFIXES.values()}


def _supports(problem: AllReduceProblem | AllReduceNormProblem, platform: Any) -> str | None:
    peers = problem.ranks.peers
    if not isinstance(peers, HostMemory):
        return peers.reason if isinstance(peers, NoPeers) else "these ranks share memory of another kind"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("reduce")


def _bind(problem: AllReduceProblem | AllReduceNormProblem, weights: Any = None) -> Callable[[torch.Tensor], None]:
    peers, size, dtype = problem.ranks.peers, problem.hidden_size, problem.dtype
    if not isinstance(peers, HostMemory):
        raise RuntimeError("the C kernel cannot exchange: the ranks share no memory of their host")
    function = getattr(load_native("reduce", _SIGNATURES), f"sum_over_ranks_{_SUFFIXES[dtype]}")
    where = (peers.memory.data_ptr(), peers.rank, peers.size, peers.max_bytes)
    most, itemsize = peers.max_bytes // dtype.itemsize, dtype.itemsize

    def run(x: torch.Tensor) -> None:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("all_reduce", x, size, dtype)
        if not x.is_contiguous():
            raise ValueError("all_reduce overwrites x, which must be contiguous")
        address, left = x.data_ptr(), x.numel()
        while left > 0:
            count = min(left, most)
            if (missing := function(*where, address, count, _LIMIT_S)) >= 0:
                raise RuntimeError(f"rank {missing} did not come to a sum over ranks within {_LIMIT_S:.0f} s")
            address, left = address + count * itemsize, left - count

    return run


def _bind_with_norm(problem: AllReduceNormProblem, weights: Any) -> Callable[..., Any]:
    reduce, add_norm = _bind(problem), select(ADD_RMS_NORM, problem.norm).prepare(weights)

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        reduce(x)
        return add_norm(x, residual)

    return run


SUM_BACKEND = Backend(
    name="native", implementation="C over memory of the host that ranks share", supports=_supports, bind=_bind
)
SUM_NORM_BACKEND = Backend(
    name="native",
    implementation="C over memory of the host that ranks share, norm",
    supports=_supports,
    bind=_bind_with_norm,
)
