"""A rank on a GPU that sums with the others and judges what comes out: ``python summing_rank.py STORE SIZE RANK GPUS``.

GPUS is how many there are: ranks have one each, or share one, where torch allows that
(``TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1``); then they have no library, since NCCL takes no GPU twice.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from atom_core.worker.graphs.cuda_capture import CudaCapture
from atom_core.worker.ranks.meeting import Meeting, Place, StoreFile, on_this_host
from atom_core.worker.ranks.peers import share_memory
from atom_core.worker.ranks.protocol import MeetingRanks
from atom_core.worker.ranks.torch_ranks import TorchRanks
from atom_kernels.norm import ADD_RMS_NORM, RMSNormProblem
from atom_kernels.protocols import PeerMemory, SingleRank
from atom_kernels.reduce import (
    ALL_REDUCE,
    ALL_REDUCE_ADD_RMS_NORM,
    AllReduceNormProblem,
    AllReduceProblem,
    piece_sum,
)
from atom_kernels.reduce.choice import METHODS
from atom_kernels.select import plan_with, select

HIDDEN, ROWS, TURNS = 2880, (1, 7, 64), 20
# Of 16 to 60 MB: beyond what the kernels above sum.
LONG = (1500, 8192, 3001)


class OnOneGpu(SingleRank):
    """Ranks that share GPU 0 and meet over gloo."""

    def __init__(self, store_path: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        torch.cuda.set_device(0)
        store = dist.FileStore(store_path, size)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=rank, world_size=size)
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        places = (Place("", 0),) * size
        self.peers = share_memory(MeetingRanks(rank, size, places, group, self.smallest, self.all_gather))

    def smallest(self, number: int) -> int:
        agreed = torch.tensor([number])
        dist.all_reduce(agreed, dist.ReduceOp.MIN)
        return int(agreed)


def parts(size: int, rows: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """What all ranks have to sum; each rank draws all of them."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(rows, HIDDEN, device="cuda", generator=generator).to(dtype) for _ in range(size)]


def in_order(given: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(given[0], dtype=torch.float32)
    for part in given:
        total += part.float()
    return total.to(given[0].dtype)


def check(name: str, is_right: bool) -> None:
    if not is_right:
        raise SystemExit(f"wrong: {name}")


def kernel(operator: Any, problem: Any, method: str, weights: Any = None) -> Callable[..., Any]:
    backend = next(one for one in operator.backends if one.implementation.endswith(method))
    return plan_with(operator, problem, backend).prepare(weights or {})


def check_sums(ranks: Any, turns: int) -> None:
    """Each method at sizes that take turns, over the same memory: the bits of the sum in the order of the ranks."""
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        kernels = {method: kernel(ALL_REDUCE, AllReduceProblem(HIDDEN, dtype, ranks), method) for method in METHODS}
        for turn, rows, method in itertools.product(range(turns), ROWS, METHODS):
            if method == "packets" and rows * HIDDEN * dtype.itemsize > 512 << 10:
                continue
            given = parts(ranks.size, rows, dtype, turn)
            x = given[ranks.rank].clone()
            kernels[method](x)
            check(f"{method}, {rows} rows of {dtype}, turn {turn}", torch.equal(x, in_order(given)))


def check_norms(ranks: Any) -> None:
    """Fused is apart: the new residual bit for bit, what is normed as far as the order of its mean goes."""
    norm = RMSNormProblem(HIDDEN, torch.bfloat16)
    weights = {"weight": torch.linspace(0.5, 2.0, HIDDEN, device="cuda").bfloat16()}
    add_norm = select(ADD_RMS_NORM, norm).prepare(weights)
    for rows, method in itertools.product(ROWS, METHODS):
        given, residual = parts(ranks.size, rows, torch.bfloat16, 5), parts(1, rows, torch.bfloat16, 6)[0]
        fused = kernel(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(norm, ranks), method, weights)
        normed, total = fused(given[ranks.rank].clone(), residual)
        wanted, added = add_norm(in_order(given), residual)
        check(f"residual of {method}, {rows} rows", torch.equal(total, added))
        check(f"norm of {method}, {rows} rows", torch.allclose(normed, wanted, rtol=1e-2, atol=1e-2))


def check_pieces(ranks: Any, turns: int) -> None:
    """Long sums follow each other over the same slots, alone, with a norm, and two sent before one is added."""
    problem, norm = AllReduceProblem(HIDDEN, torch.bfloat16, ranks), RMSNormProblem(HIDDEN, torch.bfloat16)
    pieces = piece_sum(problem)
    if pieces is None:
        raise SystemExit("wrong: two GPUs exchange no pieces")
    check("8192 rows are not sent as pieces", pieces.takes(8192))
    weight = torch.linspace(0.5, 2.0, HIDDEN, device="cuda").bfloat16()
    add_norm = select(ADD_RMS_NORM, norm).prepare({"weight": weight})
    for turn, rows in itertools.product(range(turns), LONG):
        given, more = (parts(ranks.size, rows, torch.bfloat16, 10 * turn + seed) for seed in (0, 1))
        # A rank is late, now one and now the other.
        torch.cuda._sleep(5_000_000 * ((turn + ranks.rank) % 2))
        half = given[ranks.rank] / 2
        first = pieces.send(lambda run, half=half: 2 * half[run], rows)
        second = pieces.send(more[ranks.rank].__getitem__, rows)
        normed, total = second.add_rms_norm(given[0], weight, norm)
        check(f"{rows} rows in pieces, turn {turn}", torch.equal(first.sum(), in_order(given)))
        wanted, added = add_norm(in_order(more), given[0])
        check(f"residual of {rows} rows in pieces, turn {turn}", torch.equal(total, added))
        check(f"norm of {rows} rows in pieces, turn {turn}", torch.allclose(normed, wanted, rtol=1e-2, atol=1e-2))


def check_graphs(ranks: Any, turns: int) -> None:
    """A graph of several sums is replayed on numbers that change, with sums outside of it in between."""
    problem = AllReduceProblem(HIDDEN, torch.bfloat16, ranks)
    kernels, x = [kernel(ALL_REDUCE, problem, method) for method in METHODS], parts(1, 7, torch.bfloat16, 0)[0]

    def work() -> tuple[torch.Tensor, ...]:
        results = tuple(x.clone() for _ in kernels)
        for sum_over_ranks, result in zip(kernels, results, strict=True):
            sum_over_ranks(result)
        return results

    captured = CudaCapture()(work)
    for turn in range(turns):
        given = parts(ranks.size, 7, torch.bfloat16, 100 + turn)
        x.copy_(given[ranks.rank])
        captured.replay()
        for method, result in zip(METHODS, captured.outputs, strict=True):
            check(f"{method} in a graph, replay {turn}", torch.equal(result, in_order(given)))
        if turn % 3 == 0:
            kernels[turn % len(kernels)](given[ranks.rank].clone())


def main() -> None:
    """Ends with 0 if all is right, 3 if these ranks cannot share memory, with the reason as the last line."""
    store, size, rank, num_gpus = sys.argv[1], *map(int, sys.argv[2:5])
    if num_gpus == 1:
        meeting = OnOneGpu(store, rank, size)
    else:
        meeting = TorchRanks(Meeting(on_this_host(size), StoreFile(store)), rank, device="cuda")
    ranks = meeting if isinstance(meeting, OnOneGpu) else meeting.groups.tensor
    if not isinstance(ranks.peers, PeerMemory):
        print(f"no shared memory: {ranks.peers.reason}", flush=True)
        raise SystemExit(3)
    turns = 2 if num_gpus == 1 else TURNS  # ranks on one GPU take turns of milliseconds
    with torch.inference_mode():
        check_sums(ranks, turns)
        check_norms(ranks)
        if size == num_gpus == 2:
            check_pieces(ranks, turns)
        check_graphs(ranks, turns)
    torch.cuda.synchronize()
    meeting.smallest(0)  # nobody ends while another reads its memory


if __name__ == "__main__":
    main()
