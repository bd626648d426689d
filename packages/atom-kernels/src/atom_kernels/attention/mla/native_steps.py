"""How a step is cut up for the native kernels: which requests are absorbed, which expanded, and in which pieces.

Absorbed, a query looks at latents themselves: each pair of query and key costs ``2 kv_lora_rank + rope`` products, and
there is nothing to prepare. Expanded, the keys and values of all heads are made from the latents first, after which a
pair costs ``nope + rope + v``. What is cheaper follows from a request's own lengths, so that its result does not depend
on its neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.native_backend import NativeBatch

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
class Launch:
    """A batch for the attention kernel; the tensors are those that it points into."""

    batch: NativeBatch
    tensors: tuple[torch.Tensor | None, ...]


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
    num_tokens: int
    num_rows: int
    absorbed: tuple[Rows, Launch] | None
    expanded: tuple[Rows, tuple[Round, ...]] | None
    scratch: Scratch = field(default_factory=Scratch)


def plan_step(
    problem: MlaProblem, geometry: BatchGeometry, expanded_elements: int = EXPANDED_ELEMENTS
) -> NativeMlaMetadata:
    """Cuts up the step of `geometry`."""
    starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
    absorbed, expanded = [], []
    for request in range(geometry.num_reqs):
        num_queries = starts[request + 1] - starts[request]
        if num_queries:
            (expanded if expands(problem, num_queries, lengths[request]) else absorbed).append(request)
    block_table = geometry.block_table.to(torch.int32)
    slot_mapping = geometry.slot_mapping.to(torch.int64).contiguous()
    size = _piece_size(problem, expanded_elements)
    return NativeMlaMetadata(
        slot_mapping,
        min(geometry.num_tokens, slot_mapping.shape[0]),
        starts[geometry.num_reqs],
        _absorb(absorbed, starts, lengths, block_table) if absorbed else None,
        _expand(expanded, starts, lengths, block_table, block_size=problem.block_size, size=size) if expanded else None,
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


def _absorb(
    requests: Sequence[int], starts: Sequence[int], lengths: Sequence[int], block_table: torch.Tensor
) -> tuple[Rows, Launch]:
    rows = _put_together(requests, starts)
    if len(requests) < block_table.shape[0]:
        block_table = block_table[torch.tensor(requests)]
    queries = _first_rows(requests, starts)
    launch = _launch(queries[:-1], queries[1:], [lengths[request] for request in requests], block_table)
    return rows, launch


def _expand(
    requests: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
    block_table: torch.Tensor,
    *,
    block_size: int,
    size: int,
) -> tuple[Rows, tuple[Round, ...]]:
    first_rows = _first_rows(requests, starts)
    slots = [_slots(block_table[request], lengths[request], block_size) for request in requests]
    rounds, next_key = [], [0] * len(requests)
    left = list(range(len(requests)))
    while left:
        # As many requests as fit, one piece of each.
        taken, room = [], size
        for index in left:
            count = min(size, lengths[requests[index]] - next_key[index])
            if taken and count > room:
                break
            taken.append((index, next_key[index], next_key[index] + count))
            room -= count
        rounds.append(_round(taken, [lengths[request] for request in requests], first_rows, slots))
        for index, _, end in taken:
            next_key[index] = end
        left = [index for index in left if next_key[index] < lengths[requests[index]]]
    return _put_together(requests, starts), tuple(rounds)


def _round(
    taken: Sequence[tuple[int, int, int]],
    lengths: Sequence[int],
    first_rows: Sequence[int],
    slots: Sequence[torch.Tensor],
) -> Round:
    query_starts, query_ends, seq_lens, key_ends, places, parts = [], [], [], [], [], []
    place = 0
    for index, begin, end in taken:
        first_row, last_row, length = first_rows[index], first_rows[index + 1], lengths[index]
        # Queries that stand before the piece see none of it.
        row = first_row + max(0, begin - (length - (last_row - first_row)))
        query_starts.append(row)
        query_ends.append(last_row)
        seq_lens.append(length - begin)
        key_ends.append(end - begin)
        places.append([place])
        place += end - begin
        if end - begin < length:
            parts.append(Part(slice(row, last_row), slice(first_row, last_row), begin == 0, end == length))
    table = torch.tensor(places, dtype=torch.int32)
    launch = _launch(query_starts, query_ends, seq_lens, table, key_ends)
    return Round(torch.cat([slots[index][begin:end] for index, begin, end in taken]), launch, tuple(parts))


def _launch(
    query_starts: Sequence[int],
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
    block_table: torch.Tensor,
    key_ends: Sequence[int] | None = None,
) -> Launch:
    lists = [query_starts, query_ends, seq_lens, *([key_ends] if key_ends is not None else [])]
    numbers = torch.tensor(lists, dtype=torch.int32)
    row_bytes = numbers.stride(0) * numbers.itemsize
    if block_table.stride(1) != 1:
        block_table = block_table.contiguous()
    batch = NativeBatch(
        query_starts=numbers.data_ptr(),
        query_ends=numbers.data_ptr() + row_bytes,
        seq_lens=numbers.data_ptr() + 2 * row_bytes,
        key_ends=None if key_ends is None else numbers.data_ptr() + 3 * row_bytes,
        block_table=block_table.data_ptr(),
        slot_mapping=None,
        block_table_stride=block_table.stride(0),
        num_reqs=len(query_starts),
        num_tokens=0,
    )
    return Launch(batch, (numbers, block_table))


def _first_rows(requests: Sequence[int], starts: Sequence[int]) -> list[int]:
    rows = [0]
    for request in requests:
        rows.append(rows[-1] + starts[request + 1] - starts[request])
    return rows


def _put_together(requests: Sequence[int], starts: Sequence[int]) -> Rows:
    ranges: list[tuple[int, int, int]] = []
    count = 0
    for request in requests:
        first, last = starts[request], starts[request + 1]
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last, ranges[-1][2])
        else:
            ranges.append((first, last, count))
        count += last - first
    return Rows(tuple(ranges), count)


def _slots(block_ids: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """int64 [length], where each token of a request lies."""
    blocks = block_ids[: -(-length // block_size)].to(torch.int64)
    return (blocks.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()[:length]
