"""Sums over ranks through Triton, as backends: one for each of the ways to exchange."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.operator import Backend
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.protocols import NoPeers, PeerMemory
from atom_kernels.reduce.buffers import GROUP_SIZES, MAX_NORMED, MAX_PROGRAMS, PACKETS_BYTES, layout_of
from atom_kernels.reduce.choice import METHODS, limits
from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem
from atom_kernels.triton.launch import launch

Problem = AllReduceProblem | AllReduceNormProblem
# Bytes of a tile that is no row: at least, so that a program is worth its flags, and at most, for its registers.
_TILE_BYTES = {"packets": (1024, 8192), "one shot": (2048, 16384), "two shots": (1024, 8192)}


def _max_rows(method: str, problem: Problem, platform: Any) -> int:
    peers = problem.ranks.peers
    if not isinstance(peers, PeerMemory):
        return 0
    most = min(limits(platform.arch, peers.size).get(method, 0) if peers.size > 1 else peers.max_bytes, peers.max_bytes)
    if method == "packets":
        most = min(most, PACKETS_BYTES)
    return most // (problem.hidden_size * problem.dtype.itemsize)


def _supports(method: str, problem: Problem, platform: Any) -> str | None:
    peers, row_bytes = problem.ranks.peers, problem.hidden_size * problem.dtype.itemsize
    if not isinstance(peers, PeerMemory):
        return peers.reason if isinstance(peers, NoPeers) else "these ranks share memory of another kind"
    if peers.size > 1 and peers.size not in GROUP_SIZES:
        return f"written for {', '.join(map(str, GROUP_SIZES))} ranks, not {peers.size}"
    if reason := why_not_dtype(problem.dtype, FLOATS):
        return reason
    if method == "packets" and row_bytes % 4:
        return f"sends words of 4 bytes, and a row has {row_bytes}"
    if isinstance(problem, AllReduceNormProblem) and problem.hidden_size > MAX_NORMED:
        return f"holds a row of up to {MAX_NORMED} elements in registers, not {problem.hidden_size}"
    return None if _max_rows(method, problem, platform) else f"not the quickest of any size for {peers.size} ranks"


class _Sum:
    """One way to sum over ranks, alone (in place) or with a norm, bound to the memory of peers."""

    def __init__(self, method: str, problem: Problem, weights: Any) -> None:
        if not isinstance(peers := problem.ranks.peers, PeerMemory):
            raise RuntimeError("kernels cannot exchange: the ranks share no memory of theirs")
        self._peers: PeerMemory = peers
        self._method, self._problem = method, problem
        self._norm = problem.norm if isinstance(problem, AllReduceNormProblem) else None
        self._weight = None if self._norm is None else weights["weight"].contiguous()

    def kernels_for(self, num_rows: int) -> Any:
        """What distinguishes the kernels of calls of so many rows."""
        return self._tile(num_rows * self._problem.hidden_size)

    def reduce(self, x: torch.Tensor) -> None:
        """Overwrites x by the sum."""
        self._check(x)
        if not x.is_contiguous():
            raise ValueError("all_reduce overwrites x, which must be contiguous")
        self._run(x, None, x, None)

    def reduce_add_norm(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(normed, new residual)``."""
        self._check(x)
        self._check(residual)
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        self._run(x, residual, out, total)
        return out, total

    def _check(self, x: torch.Tensor) -> None:
        size, dtype = self._problem.hidden_size, self._problem.dtype
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("all_reduce", x, size, dtype)

    def _tile(self, num_elements: int) -> tuple[int, int]:
        """Elements of a tile, and warps of its program; what is not normed has as many tiles as programs, if large."""
        itemsize = self._problem.dtype.itemsize
        if self._norm is not None:
            size = self._problem.hidden_size
        else:
            least, most = _TILE_BYTES[self._method]
            num_tiles = MAX_PROGRAMS * (self._peers.size if self._method == "two shots" else 1)
            size = min(max(power_of_two(-(-num_elements * itemsize // num_tiles)), least), most) // itemsize
        return size, min(max(power_of_two(size) * itemsize // 512, 1), 16)

    def _run(
        self, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor, total: torch.Tensor | None
    ) -> None:
        if x.numel():
            how = self._send_packets if self._method == "packets" else self._share_parts
            how(x.numel(), (x, residual, self._weight, out, total))

    def _send_packets(self, num_elements: int, tensors: tuple[torch.Tensor | None, ...]) -> None:
        import triton.language as tl

        from atom_kernels.reduce.triton_kernels import sum_packets_kernel

        layout, dtype = layout_of(self._peers), self._problem.dtype
        words = [None if one is None else one.view(-1).view(torch.int32) for one in tensors]
        size, num_warps = self._tile(num_elements)
        num_words, size = num_elements * dtype.itemsize // 4, size * dtype.itemsize // 4
        launch(
            sum_packets_kernel,
            (-(-num_words // size),),
            *words,
            *self._places(num_words),
            PACKETS=layout.packets,
            MAX_WORDS=layout.max_words,
            DTYPE=getattr(tl, str(dtype).removeprefix("torch.")),
            WIDTH=self._problem.hidden_size,
            **self._options(size, num_warps),
        )

    def _share_parts(self, num_elements: int, tensors: tuple[torch.Tensor | None, ...]) -> None:
        from atom_kernels.reduce.triton_kernels import sum_at_once_kernel, sum_in_two_kernel

        layout, (size, num_warps) = layout_of(self._peers), self._tile(num_elements)
        options = self._options(size, num_warps) | {
            "PARTS": layout.parts,
            "MAX_ELEMENTS": layout.max_bytes // self._problem.dtype.itemsize,
            "MAX_PROGRAMS": MAX_PROGRAMS,
        }
        num_tiles, kernel = -(-num_elements // size), sum_at_once_kernel
        if self._method == "two shots":
            num_tiles, kernel = -(-num_tiles // self._peers.size), sum_in_two_kernel
            options["SUMS"] = layout.sums
        launch(kernel, (min(num_tiles, MAX_PROGRAMS),), *tensors, *self._places(num_elements), **options)

    def _places(self, count: int) -> tuple[Any, ...]:
        eps, offset = (0.0, 0.0) if self._norm is None else (self._norm.eps, self._norm.weight_offset)
        return self._peers.addresses, self._peers.calls, count, eps, offset

    def _options(self, size: int, num_warps: int) -> dict[str, Any]:
        from atom_kernels.triton.support import dependent_launch

        options = {"RANK": self._peers.rank, "RANKS": self._peers.size, "NORM": self._norm is not None, "SIZE": size}
        return options | {"BLOCK": power_of_two(size), "num_warps": num_warps} | dependent_launch()


class _InPlace(_Sum):
    def __call__(self, x: torch.Tensor) -> None:
        self.reduce(x)


class _Normed(_Sum):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.reduce_add_norm(x, residual)


def _backends(bind: Callable[..., Any]) -> tuple[Backend, ...]:
    return tuple(
        Backend(
            name="triton",
            implementation=f"Triton over peers' memory, {method}",
            supports=partial(_supports, method),
            bind=partial(bind, method),
            max_rows=partial(_max_rows, method),
        )
        for method in METHODS
    )


SUM_BACKENDS = _backends(_InPlace)
SUM_NORM_BACKENDS = _backends(_Normed)
