"""Sums over ranks on AITER: its custom all-reduce, alone and with the residual's addition and the norm behind it.

AITER's kernels are called over memory that ranks tell each other of by their own collectives. Its Python class would
want a TCP store, and would read what it finds there by pickle.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.norm import norm_tolerance, rows_of
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.operator import Backend
from atom_kernels.protocols import AiterMemory, NoPeers

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem
    from atom_kernels.reduce.rounded import RoundedAllReduceNormProblem

    Problem = AllReduceProblem | AllReduceNormProblem | RoundedAllReduceNormProblem

Gather = Callable[[torch.Tensor], torch.Tensor]

# The largest tensor that AITER's own communicator gives to these kernels.
MAX_BYTES = 64 << 20
GROUP_SIZES, NORMED_GROUP_SIZES = (2, 4, 6, 8), (2, 4, 8)
# Numbers that all of AITER's registered buffers have room in, and the bytes of a handle of memory.
_TABLE_BYTES, _HANDLE_BYTES = 8 << 20, 64
# A row that is normed: elements at most, and 16-byte packs at least and at most.
_MAX_NORMED, _LEAST_PACKS, _MOST_PACKS = 16384, 64, 2048
# Up to so many bytes one kernel sums and norms. Above, two do.
ONE_STAGE_BYTES = 128 << 10
_HALVES = (torch.bfloat16, torch.float16)
_SUM, _SUM_NORM = "all_reduce", "fused_allreduce_rmsnorm"
_SETUP = ("meta_size", "allocate_meta_buffer", "get_meta_buffer_ipc_handle", "init_custom_ar", "register_input_buffer")


def why_not_shared(size: int, platform: Platform) -> str | None:
    """Why so many ranks cannot exchange by AITER on this platform; None if they can."""
    if reason := platform.why_not("aiter"):
        return reason
    if size not in GROUP_SIZES:
        return f"AITER sums over {', '.join(map(str, GROUP_SIZES))} ranks, not {size}"
    api = api_of(platform)
    return next((reason for name in (*_SETUP, _SUM) if (reason := api.why_not(name))), None)


def share_memory(rank: int, size: int, *, device: torch.device, gather: Gather) -> AiterMemory:
    """Memory of AITER's kernels among ranks, each of which calls this with all others.

    Args:
        gather: ``uint8 [n] -> uint8 [size, n]`` on the host, what every rank gave.
    """
    aiter = library()
    # Sums of two stages put what they have so far behind the flags.
    flags = aiter.bind("allocate_meta_buffer", "size")(aiter.bind("meta_size")() + 2 * MAX_BYTES)
    # A handle is of a whole allocation, which this has to be the beginning of: torch gives a tensor of this size one of
    # its own, unless it has a larger one to cut.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    buffer = torch.empty(MAX_BYTES, dtype=torch.uint8, device=device)
    table = torch.empty(_TABLE_BYTES, dtype=torch.uint8, device=device)
    handles = gather(_handle(flags)).contiguous()
    group = aiter.bind(
        "init_custom_ar",
        "meta_ptr", "rank_data_ptr", "rank_data_sz", "ipc_handle_ptrs", "offsets", "rank", "fully_connected",
    )(flags, table.data_ptr(), table.numel(), _addresses(handles), [0] * size, rank, True)  # fmt: skip
    handles = gather(_handle(buffer.data_ptr())).contiguous()
    register = aiter.bind("register_input_buffer", "_fa", "self_ptr", "ipc_handle_ptrs", "offsets")
    register(group, buffer.data_ptr(), _addresses(handles), [0] * size)
    return AiterMemory(rank, size, group, buffer.data_ptr(), MAX_BYTES, (buffer, table))


def _handle(address: int) -> torch.Tensor:
    """What other processes open the allocation at `address` by, uint8."""
    handle = (ctypes.c_uint8 * _HANDLE_BYTES)()
    library().bind("get_meta_buffer_ipc_handle", "inp_ptr", "out_handle_ptr")(address, ctypes.addressof(handle))
    return torch.tensor(list(handle), dtype=torch.uint8)


def _addresses(rows: torch.Tensor) -> list[int]:
    return [row.data_ptr() for row in rows]


def memory_of(problem: Problem) -> AiterMemory | str:
    """What the ranks of `problem` share, or why it is no memory of AITER."""
    peers = problem.ranks.peers
    if isinstance(peers, AiterMemory):
        return peers
    return peers.reason if isinstance(peers, NoPeers) else "these ranks share memory of another kind"


def _supports_sum(problem: AllReduceProblem, platform: Platform) -> str | None:
    memory, row_bytes = memory_of(problem), problem.hidden_size * problem.dtype.itemsize
    if isinstance(memory, str):
        return memory
    if row_bytes % 16:
        return f"sums packs of 16 bytes, and a row has {row_bytes}"
    return why_not_dtype(problem.dtype, FLOATS) or api_of(platform).why_not(_SUM)


def _supports_sum_norm(problem: AllReduceNormProblem, platform: Platform) -> str | None:
    memory, row_bytes = memory_of(problem), problem.hidden_size * problem.dtype.itemsize
    if isinstance(memory, str):
        return memory
    if memory.size not in NORMED_GROUP_SIZES:
        return f"{_SUM_NORM} is written for {', '.join(map(str, NORMED_GROUP_SIZES))} ranks, not {memory.size}"
    if problem.dtype not in _HALVES:
        return f"{_SUM_NORM} is called for bfloat16 and float16, not {problem.dtype}"
    if row_bytes % (16 * memory.size):
        return f"a row of {row_bytes} bytes is no packs of 16 for each of {memory.size} ranks"
    if not _LEAST_PACKS <= row_bytes // 16 <= _MOST_PACKS or problem.hidden_size > _MAX_NORMED:
        return f"{_SUM_NORM} norms rows of {_LEAST_PACKS * 8} to {_MAX_NORMED} elements, not {problem.hidden_size}"
    if problem.norm.weight_offset not in (0.0, 1.0):
        return f"{_SUM_NORM} adds 1 to the weight or nothing, not {problem.norm.weight_offset:g}"
    return api_of(platform).why_not(_SUM_NORM)


def max_rows_of(problem: Problem, platform: Platform, *, spare: int = 0) -> int:
    """Rows of `problem` that fit into the memory and leave so many bytes of it."""
    return (memory_for(problem).max_bytes - spare) // (problem.hidden_size * problem.dtype.itemsize)


def memory_for(problem: Problem) -> AiterMemory:
    """What the ranks of `problem` share; raises RuntimeError where it is no memory of AITER."""
    if isinstance(memory := memory_of(problem), str):
        raise RuntimeError(f"AITER cannot sum over ranks: {memory}")
    return memory


def _bind_sum(problem: AllReduceProblem, weights: Any) -> Callable[[torch.Tensor], None]:
    memory, size, dtype = memory_for(problem), problem.hidden_size, problem.dtype
    reduce = partial(
        library().bind(
            _SUM, "_fa", "inp", "out", use_new=True, open_fp8_quant=False,
            reg_inp_ptr=memory.buffer, reg_inp_bytes=memory.max_bytes,
        ),
        memory.group,
    )  # fmt: skip

    def run(x: torch.Tensor) -> None:
        rows = rows_of(x, size, dtype, _SUM)
        if rows.data_ptr() != x.data_ptr():
            raise ValueError("all_reduce overwrites x, which must be contiguous")
        if rows.shape[0]:
            # What is summed is a copy in AITER's buffer, so the sum may be written where x was read.
            reduce(rows, rows)

    return run


def _bind_sum_norm(
    problem: AllReduceNormProblem, weights: Any
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    memory, size, dtype = memory_for(problem), problem.hidden_size, problem.dtype
    fixed = {"eps": problem.norm.eps, "reg_ptr": memory.buffer, "reg_bytes": memory.max_bytes}
    reduce = library().bind(
        _SUM_NORM, "_fa", "inp", "res_inp", "res_out", "out", "use_1stage",
        w=weights["weight"].contiguous(), gemma_norm=problem.norm.weight_offset == 1.0, **fixed,
    )  # fmt: skip

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, others = rows_of(x, size, dtype, _SUM_NORM), rows_of(residual, size, dtype, _SUM_NORM)
        if rows.shape != others.shape:
            raise TypeError(f"{_SUM_NORM} was given {list(x.shape)} and a residual {list(residual.shape)}")
        out, total = torch.empty_like(rows), torch.empty_like(rows)
        if rows.shape[0]:
            reduce(memory.group, rows, others, total, out, rows.nbytes <= ONE_STAGE_BYTES)
        return out.view(x.shape), total.view(x.shape)

    return run


SUM_BACKEND = Backend(
    name="aiter",
    implementation="AITER all_reduce",
    supports=_supports_sum,
    bind=_bind_sum,
    max_rows=max_rows_of,
    tolerance=norm_tolerance,
)
SUM_NORM_BACKEND = Backend(
    name="aiter",
    implementation="AITER fused_allreduce_rmsnorm",
    supports=_supports_sum_norm,
    bind=_bind_sum_norm,
    max_rows=partial(max_rows_of, spare=1),
    tolerance=norm_tolerance,
)
