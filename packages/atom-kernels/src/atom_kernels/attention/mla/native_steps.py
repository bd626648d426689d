"""How a step is cut up for the native kernels: which requests are absorbed, which expanded, and in which pieces.

Absorbed, a query looks at latents themselves: each pair of query and key costs ``2 kv_lora_rank + rope`` products, and
there is nothing to prepare. Expanded, the keys and values of all heads are made from the latents first, after which a
pair costs ``nope + rope + v``. What is cheaper follows from a request's own lengths, so that its result does not depend
on its neighbors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.native_backend import Launch

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.protocols import BatchGeometry

# Elements of expanded keys and values that exist at a time, unless a piece of the smallest size has more.
EXPANDED_ELEMENTS = 1 << 23
# Pieces are cut at multiples of this many keys, where the attention kernel cuts as well.
_SEGMENT = 256
# Fewer queries than this are not worth a launch of their own.
_FEW_QUERIES = 16


class Scratch:
    """Buffers that the layers of one step use one after the other."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor; what was taken under this name before is gone."""
        count = 1
        for size in shape:
            count *= size
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)


@dataclass(frozen=True)
class Rows:
    """Rows of some requests, and where they come to lie when these are put together.

    Attributes:
        ranges: (first row of the step, last row, first row of those put together).
        count: rows in all.
    """

    ranges: tuple[tuple[int, int, int], ...]
    count: int


@dataclass(frozen=True)
class Part:
    """One of several pieces of a request: the rows that see some of it, among all of the request's."""

    rows: slice
    all_rows: slice
    is_first: bool
    is_last: bool


@dataclass(frozen=True)
class Round:
    """Pieces of expanded requests that run together: the slots of their latents one after the other, and the batch."""

    slots: torch.Tensor
    launch: Launch
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class NativeMlaMetadata:
    """One step. `absorbed` and `expanded` are None where no request goes that way."""

    slot_mapping: torch.Tensor
    num_rows: int
    absorbed: tuple[Rows, Launch] | None
    expanded: tuple[Rows, tuple[Round, ...]] | None
    scratch: Scratch = field(default_factory=Scratch)


@dataclass(frozen=True)
class _Request:
    """A request of the step: its row of the block table, its rows of queries, and its tokens in the cache."""

    index: int
    first: int
    last: int
    length: int

    @property
    def num_queries(self) -> int:
        return self.last - self.first


def plan_step(
    problem: MlaProblem,
    geometry: BatchGeometry,
    expanded_elements: int = EXPANDED_ELEMENTS,
    *,
    longest: int | None = None,
) -> NativeMlaMetadata:
    """Cuts up the step of `geometry`. Requests of more than `longest` tokens are left out."""
    step = geometry.dense()
    starts, lengths = step.query_start_loc.tolist(), step.seq_lens.tolist()
    absorbed, expanded = [], []
    for index in range(step.num_reqs):
        request = _Request(index, starts[index], starts[index + 1], lengths[index])
        if request.num_queries and (longest is None or request.length <= longest):
            (expanded if expands(problem, request.num_queries, request.length) else absorbed).append(request)
    size = _piece_size(problem, expanded_elements)
    return NativeMlaMetadata(
        step.slot_mapping,
        starts[step.num_reqs],
        _absorb(absorbed, step.block_table) if absorbed else None,
        _expand(expanded, step.block_table, problem.block_size, size) if expanded else None,
    )


def expands(problem: MlaProblem, num_queries: int, num_keys: int) -> bool:
    """Whether a request of so many queries at the end of so many keys is expanded.

    Never in float32, where a query's bits are to be the same whatever the chunk that it came in.
    """
    if problem.dtype == "float32" or num_queries < _FEW_QUERIES:
        return False
    per_latent = problem.kv_lora_rank * (problem.qk_nope_head_dim + problem.v_head_dim)
    saved = 2 * problem.kv_lora_rank - problem.qk_nope_head_dim - problem.v_head_dim
    pairs = num_queries * (2 * num_keys - num_queries + 1) // 2
    return pairs * saved > (num_keys - num_queries) * per_latent


def _piece_size(problem: MlaProblem, expanded_elements: int) -> int:
    """Keys that are expanded together."""
    per_key = problem.num_heads * (problem.query_dim + problem.v_head_dim)
    return max(expanded_elements // per_key // _SEGMENT, 1) * _SEGMENT


def _absorb(requests: Sequence[_Request], block_table: torch.Tensor) -> tuple[Rows, Launch]:
    if len(requests) < block_table.shape[0]:
        block_table = block_table[torch.tensor([request.index for request in requests])]
    first_rows = _first_rows(requests)
    lengths = [request.length for request in requests]
    return _put_together(requests), _launch(block_table, first_rows[:-1], first_rows[1:], lengths)


def _expand(
    requests: Sequence[_Request], block_table: torch.Tensor, block_size: int, size: int
) -> tuple[Rows, tuple[Round, ...]]:
    slots = [_slots(block_table[request.index], request.length, block_size) for request in requests]
    rounds, next_key = [], [0] * len(requests)
    left = list(range(len(requests)))
    while left:
        # As many requests as fit, one piece of each.
        taken, room = [], size
        for index in left:
            count = min(size, requests[index].length - next_key[index])
            if taken and count > room:
                break
            taken.append((index, next_key[index], next_key[index] + count))
            room -= count
        rounds.append(_round(taken, requests, slots))
        for index, _, end in taken:
            next_key[index] = end
        left = [index for index in left if next_key[index] < requests[index].length]
    return _put_together(requests), tuple(rounds)


def _round(taken: Sequence[tuple[int, int, int]], requests: Sequence[_Request], slots: Sequence[torch.Tensor]) -> Round:
    first_rows = _first_rows(requests)
    columns, places, parts = [], [], []
    place = 0
    for index, begin, end in taken:
        first_row, last_row, length = first_rows[index], first_rows[index + 1], requests[index].length
        # Queries that stand before the piece see none of it.
        row = first_row + max(0, begin - (length - requests[index].num_queries))
        columns.append((row, last_row, length - begin, end - begin))
        places.append([place])
        place += end - begin
        if end - begin < length:
            parts.append(Part(slice(row, last_row), slice(first_row, last_row), begin == 0, end == length))
    launch = _launch(torch.tensor(places, dtype=torch.int32), *zip(*columns, strict=True))
    return Round(torch.cat([slots[index][begin:end] for index, begin, end in taken]), launch, tuple(parts))


def _launch(block_table: torch.Tensor, *lists: Sequence[int]) -> Launch:
    """A batch of first rows, last rows and lengths of requests, and where these are given the ends of their keys."""
    query_starts, query_ends, seq_lens, *key_ends = torch.tensor(lists, dtype=torch.int32)
    return Launch.of(query_starts, query_ends, seq_lens, block_table, key_ends=key_ends[0] if key_ends else None)


def _first_rows(requests: Sequence[_Request]) -> list[int]:
    """The first row of each request when their rows are put together, and behind them the number of rows."""
    return list(itertools.accumulate((request.num_queries for request in requests), initial=0))


def _put_together(requests: Sequence[_Request]) -> Rows:
    ranges: list[tuple[int, int, int]] = []
    first_rows = _first_rows(requests)
    for request, at in zip(requests, first_rows, strict=False):
        if ranges and ranges[-1][1] == request.first:
            ranges[-1] = (ranges[-1][0], request.last, ranges[-1][2])
        else:
            ranges.append((request.first, request.last, at))
    return Rows(tuple(ranges), first_rows[-1])


def _slots(block_ids: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """int64 [length], where each token of a request lies."""
    blocks = block_ids[: -(-length // block_size)].to(torch.int64)
    return (blocks.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()[:length]
