"""A rank of `python -m benchmarks all-reduce`: ``python -m benchmarks.all_reduce_rank STORE RANKS RANK SETTINGS``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from atom_core.worker.ranks.meeting import Meeting, StoreFile, on_this_host
from atom_core.worker.ranks.torch_ranks import TorchRanks
from atom_kernels.norm import ADD_RMS_NORM, RMSNormProblem
from atom_kernels.protocols import Collectives, NoPeers
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem
from atom_kernels.reduce.choice import METHODS
from atom_kernels.select import plan_with, select

# Calls of one graph, and replays of it.
_CALLS, _REPLAYS = 100, 7
Call = Callable[[], Any]


class Sides:
    """What is measured on rows of a size: calls by name, over memory that they keep."""

    def __init__(self, ranks: Collectives, num_bytes: int, hidden: int) -> None:
        self._ranks, self._hidden = ranks, hidden
        self._rows = num_bytes // (2 * hidden)
        generator = torch.Generator("cuda").manual_seed(ranks.rank)
        self._part = torch.randn(self._rows, hidden, device="cuda", generator=generator).bfloat16()
        self._x = torch.zeros_like(self._part)
        shared = torch.Generator("cuda").manual_seed(99)
        self._residual = torch.randn(self._rows, hidden, device="cuda", generator=shared).bfloat16()
        self._weight = {"weight": torch.randn(hidden, device="cuda", generator=shared).bfloat16()}

    def calls(self) -> Iterator[tuple[str, Call]]:
        """Sums of zeros in place, so that no value grows, alone and with what follows them."""
        problem = AllReduceProblem(self._hidden, torch.bfloat16, self._ranks)
        norm = RMSNormProblem(self._hidden, torch.bfloat16)
        chosen, x, residual = select(ALL_REDUCE, problem).prepare(), self._x, self._residual
        add_norm = select(ADD_RMS_NORM, norm).prepare(self._weight)
        fused = select(ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem(norm, self._ranks)).prepare(self._weight)
        yield "ours", partial(chosen, x)
        yield "NCCL", partial(dist.all_reduce, x)
        for name in self._usable():
            yield name, partial(self._method(name), x)
        yield from self._of_torch()
        yield "ours with norm", lambda: fused(x, residual)
        yield "ours, norm", lambda: (chosen(x), add_norm(x, residual))
        yield "NCCL, norm", lambda: (dist.all_reduce(x), add_norm(x, residual))

    def mistakes(self) -> list[str]:
        """What is wrong with the results of our kernels on random numbers, in words."""
        parts = self._ranks.all_gather(self._part[None], 0)
        wanted = torch.zeros_like(self._part, dtype=torch.float32)
        for part in parts:
            wanted += part.float()
        wanted, found = wanted.bfloat16(), []
        for name in self._usable():
            for turn in range(3):
                x = self._part.clone()
                self._method(name)(x)
                if not torch.equal(x, wanted):
                    found.append(f"{name} of {self._part.nbytes} bytes, call {turn}: not the sum")
        norm = RMSNormProblem(self._hidden, torch.bfloat16)
        problem = AllReduceNormProblem(norm, self._ranks)
        fused = select(ALL_REDUCE_ADD_RMS_NORM, problem).prepare(self._weight)
        normed, total = fused(self._part.clone(), self._residual)
        apart, added = select(ADD_RMS_NORM, norm).prepare(self._weight)(wanted, self._residual)
        if not torch.equal(total, added):
            found.append(f"with a norm, {self._part.nbytes} bytes: not the sum")
        if not torch.allclose(normed, apart, atol=2e-2, rtol=2e-2):
            found.append(f"with a norm, {self._part.nbytes} bytes: not the norm")
        return found

    def _usable(self) -> list[str]:
        peers = self._ranks.peers
        if isinstance(peers, NoPeers):
            return []
        most = {"packets": 512 << 10}
        return [name for name in METHODS if self._part.nbytes <= min(peers.max_bytes, most.get(name, peers.max_bytes))]

    def _method(self, name: str) -> Any:
        backend = next(one for one in ALL_REDUCE.backends if one.implementation.endswith(name))
        problem = AllReduceProblem(self._hidden, torch.bfloat16, self._ranks)
        return plan_with(ALL_REDUCE, problem, backend).prepare()

    def _of_torch(self) -> Iterator[tuple[str, Call]]:
        if isinstance(self._ranks.peers, NoPeers):
            return
        from torch.distributed import _symmetric_memory as symmetric

        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        shared = symmetric.empty(self._part.shape, dtype=torch.bfloat16, device=self._part.device)
        symmetric.rendezvous(shared, group)
        shared.zero_()
        yield "torch, one shot", partial(torch.ops.symm_mem.one_shot_all_reduce, shared, "sum", group)
        yield "torch, two shots", partial(torch.ops.symm_mem.two_shot_all_reduce_, shared, "sum", group)


def microseconds(call: Call, ranks: TorchRanks) -> float:
    """The median time of a call inside a graph, of the rank that takes longest."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's own threads use the device meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            call()
    times = []
    for _ in range(_REPLAYS):
        ranks.smallest(0)  # they begin together
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / _CALLS)
    return -ranks.smallest(-round(1e3 * statistics.median(times))) / 1e3


def main() -> int:
    """Measure; the first rank writes what was found."""
    store, size, rank, settings = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    ranks = TorchRanks(Meeting(on_this_host(size), StoreFile(store)), rank, device="cuda")
    summing = ranks.groups.tensor
    results, mistakes = [], []
    with torch.inference_mode():
        for num_bytes in settings["bytes"]:
            sides = Sides(summing, num_bytes, settings["hidden"])
            mistakes += sides.mistakes()
            us = {name: round(microseconds(call, ranks), 2) for name, call in sides.calls()}
            results.append({"bytes": num_bytes, "us": us})
            if rank == 0:
                print(num_bytes, us, flush=True)
    reason = summing.peers.reason if isinstance(summing.peers, NoPeers) else None
    if rank == 0:
        found = {"results": results, "mistakes": mistakes, "why_no_peers": reason}
        Path(settings["output"]).write_text(json.dumps(found))
    elif mistakes:
        print(f"rank {rank} found mistakes: {mistakes}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
