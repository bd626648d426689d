"""Every launch of our Triton kernels as a GPU would get it, on a machine without one: `python gpu_launches.py gfx942`.

A driver that knows only its target stands in for the real one. Launches are checked by Triton's backend for the target
and turned into code for it, about a second each, but not run. It must be a process of its own: Triton has one driver.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem, LowRankTerm
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.encoder import cases as encoder_cases
from atom_kernels.attention.index import cases as index_cases
from atom_kernels.attention.mla import cases as latent_cases
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.sparse import cases as sparse_cases
from atom_kernels.cases import bench_cases
from atom_kernels.formats import Integers
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.cache_format import ALL_SCALES, NO_SCALES
from atom_kernels.norm import RMSNormProblem
from atom_kernels.platform import AITER_ARCHES, Facts, Platform, platform_from_facts, use_platform
from atom_kernels.protocols import SingleRank
from atom_kernels.reduce import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem, AllReduceProblem, PieceSum
from atom_kernels.reduce.buffers import MAX_BYTES, peers_over
from atom_kernels.registry import all_ops
from atom_kernels.select import plan_with, select
from atom_kernels.triton.launch import launches_go_to
from forked_ranks import SharingRank, shared_buffers, two_ranks_over

_TARGETS = {
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "sm_90": GPUTarget("cuda", 90, 32),
}
_MAX_WORKGROUP = 1024
# Longer than any that is measured on a host: some GPUs have a kernel of their own for it.
_LONG_PROMPT = 4096
_MIXED = [(1, 5), (1, 300), (40, 40), (17, 65)]


class _TargetOnly:
    """What Triton asks of a driver before it launches."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Launches:
    """What is made of launches instead: kernels by name, and what is wrong with a launch."""

    def __init__(self, platform: Platform, warp_size: int) -> None:
        self._local_memory, self._warp_size = platform.local_memory, warp_size
        self.count: Counter[str] = Counter()
        self.failures: set[str] = set()

    def take(self, kernel: JITFunction[Any], grid: Any, *arguments: Any, **options: Any) -> None:
        name = kernel.__name__
        self.count[name] += 1
        threads = options.get("num_warps", 4) * self._warp_size
        if threads > _MAX_WORKGROUP:
            self.failures.add(f"{name}: {threads} threads are more than the {_MAX_WORKGROUP} that a program can have")
        try:
            code = kernel.run(*arguments, grid=grid, warmup=True, **options)
        except Exception as error:  # whatever Triton raises is the finding
            self.failures.add(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
            return
        if code.metadata.shared > self._local_memory:
            sizes = {key: value for key, value in options.items() if key.startswith(("BLOCK", "num_"))}
            needed = f"{code.metadata.shared} bytes of local memory, there are {self._local_memory}"
            self.failures.add(f"{name}: {needed} with {sizes}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", choices=sorted(_TARGETS))
    arguments = parser.parse_args()
    target, platform = _TARGETS[arguments.arch], _platform(arguments.arch)
    driver.set_active(_TargetOnly(target))
    launches = Launches(platform, target.warp_size)
    with use_platform(platform), torch.inference_mode(), launches_go_to(launches.take):
        for run in _triton_runs(platform):
            run()
    print(f"Triton {triton.__version__}, {arguments.arch}: {launches.count.total()} launches")
    for name, count in sorted(launches.count.items()):
        print(f"  {name:<28}{count:>5}")
    for failure in sorted(launches.failures):
        print(f"FAIL {failure}")
    return 1 if launches.failures else 0


def _platform(arch: str) -> Platform:
    """Where Triton serves everything. Tensors stay on the host: nothing reads them."""
    build = "rocm" if arch in AITER_ARCHES else "cuda"
    facts = Facts(
        torch_build=build, num_devices=1, device_name=arch, device_arch=arch, triton_version=triton.__version__
    )
    return replace(platform_from_facts(facts), device="cpu")


class _OneOf(SingleRank):
    """A rank of several; nothing reads the memory that it would share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.peers = peers_over([torch.zeros(1, dtype=torch.uint8)] * size, 0, MAX_BYTES)


def _sums_over_ranks(size: int) -> Iterator[Any]:
    ranks = _OneOf(size)
    norm = RMSNormProblem(4096, torch.bfloat16)
    problems = {
        ALL_REDUCE: AllReduceProblem(4096, torch.bfloat16, ranks),
        ALL_REDUCE_ADD_RMS_NORM: AllReduceNormProblem(norm, ranks),
    }
    for op, problem in problems.items():
        weights, inputs = op.make_inputs(problem, 32, torch.Generator())
        for backend in op.backends:
            if backend.name.startswith("triton"):
                yield partial(plan_with(op, problem, backend).prepare(weights), *inputs)


def _long_sums_over_ranks() -> Iterator[Any]:
    for peers in two_ranks_over(shared_buffers(2, 1 << 20), 1 << 20):
        pieces = PieceSum(AllReduceProblem(4096, torch.bfloat16, SharingRank(peers)), peers, peers.pieces)
        yield pieces.send(torch.zeros(300, 4096, dtype=torch.bfloat16).__getitem__, 300).sum


def _adapted_linears() -> Iterator[Any]:
    """Linears that add what adapters give, packed ones and with an activation."""
    for problem, parts in (
        (LinearProblem(4096, 6144, torch.bfloat16, neighbors=True), (4096, 1024, 1024)),
        (LinearProblem(4096, 12288, torch.bfloat16, gated=True, neighbors=True), (12288, 12288)),
        (LinearProblem(4096, 4096, torch.bfloat16, weight_format=Integers(4, 128), neighbors=True), (4096,)),
    ):
        adapters = LowRankProblem(problem.in_features, parts, 16, 8, problem.dtype)
        for num_rows in (1, 8, 32):
            matrices, (_, _, places) = ADD_LOW_RANK.make_inputs(adapters, num_rows, torch.Generator())
            term = LowRankTerm(places, matrices["a"], matrices["b"], parts, lambda y, x: None)
            weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator())
            yield partial(select(LINEAR, problem, only_backend="triton").prepare(weights), *inputs, None, term)


def _triton_runs(platform: Platform) -> Iterator[Any]:
    yield from _sums_over_ranks(8)
    yield from _long_sums_over_ranks()
    yield from _adapted_linears()
    for op in all_ops().values():
        yield from (case.run for case in bench_cases(op, platform) if case.backend.startswith("triton"))
    for scales in ALL_SCALES:
        float8 = {"kv_cache_dtype": platform.float8, "scales": scales}
        paged = make_problem(16, 8, 128, "bfloat16", **float8)
        yield partial(make_step(paged, _MIXED).run, select_mixer(paged, platform, only_backend="triton"))
        # Many heads take minutes to compile for AMD: once is enough.
        for heads in (16, 128) if scales == NO_SCALES else (16,):
            latent = latent_cases.make_problem(heads, 512, 128, 64, 128, "bfloat16", **float8)
            step = latent_cases.make_step(latent, _MIXED)
            yield partial(step.run, select_mixer(latent, platform, only_backend="triton"))
    for heads in (16, 128):
        index = index_cases.make_problem(64, 128, 64, 256, "bfloat16")
        yield partial(index_cases.make_step(index, _MIXED).run, select_mixer(index, platform, only_backend="triton"))
        sparse = sparse_cases.make_problem(heads, 512, 128, 64, 128, 256, dtype="bfloat16")
        yield partial(sparse_cases.make_step(sparse, _MIXED).run, select_mixer(sparse, platform, only_backend="triton"))
    for dtype, head_dim in (("bfloat16", 72), ("float16", 128), ("bfloat16", 256), ("float32", 64)):
        encoder = encoder_cases.make_problem(16, head_dim, dtype)
        texts = encoder_cases.make_step(encoder, [40, 17], rotary=True)
        yield partial(texts.run, select_mixer(encoder, platform, only_backend="triton"))
    for heads, rules in (
        ((16, 8, 128), {}),
        ((40, 8, 128), {}),
        ((64, 8, 64), {"has_sinks": True}),
        ((8, 4, 256), {"sees_ahead": True}),
    ):
        problem = make_problem(*heads, "bfloat16", **rules)
        step = make_step(problem, [(1, 5), (_LONG_PROMPT, _LONG_PROMPT)])
        yield partial(step.run, select_mixer(problem, platform, only_backend="triton"))


if __name__ == "__main__":
    sys.exit(main())
