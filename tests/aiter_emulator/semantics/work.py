"""Schedules of persistent kernels: which workgroup computes which keys of which rows, and which parts are summed up.

They live in six buffers that the caller allocates. Writing and reading them is all that connects the metadata functions
with the kernels: a kernel that gets another step's buffers computes another step's attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .checks import check_contiguous, check_dtype, detect_unless, refuse_unless
from .host import ints


@dataclass(frozen=True)
class Work:
    """Rows of queries against keys of one sequence; `partial` is their row among partial results, -1 for final ones."""

    sequence: int
    partial: int
    q_start: int
    q_end: int
    kv_start: int
    kv_end: int
    kv_after: int
    heads: int = 0


@dataclass(frozen=True)
class Buffers:
    """What a metadata function fills."""

    pointers: Tensor
    work_indptr: Tensor
    work_info: Tensor
    reduce_indptr: Tensor
    reduce_final_map: Tensor
    reduce_partial_map: Tensor

    def check(self) -> None:
        """The six have their types; two of one shape are told apart by what is in them later."""
        check_dtype("work_metadata_ptrs", self.pointers, torch.uint64)
        detect_unless(self.pointers.numel() == 2, "work_metadata_ptrs holds two addresses")
        detect_unless(self.work_info.dim() == 2 and self.work_info.shape[1] == 8, "work_info is [works, 8]")
        detect_unless(self.reduce_final_map.shape[1:] == (2,), "reduce_final_map is [tiles, 2]")
        for name in ("work_indptr", "reduce_indptr", "reduce_partial_map"):
            detect_unless(getattr(self, name).dim() == 1, f"{name} has {getattr(self, name).dim()} dimensions")
        for name in ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map"):
            check_dtype(name, getattr(self, name), torch.int32)
            check_contiguous(name, getattr(self, name))


def write(buffers: Buffers, tiles: list[list[Work]], num_workgroups: int) -> None:
    """Store the parts of each tile; works go around the workgroups, parts of one tile to different ones."""
    buffers.check()
    works = [work for parts in tiles for work in parts]
    split = [parts for parts in tiles if parts[0].partial >= 0]
    for name, tensor, needed in (
        ("work_indptr", buffers.work_indptr, num_workgroups + 1),
        ("work_info", buffers.work_info, len(works)),
        ("reduce_indptr", buffers.reduce_indptr, len(tiles) + 1),
        ("reduce_final_map", buffers.reduce_final_map, len(tiles)),
        ("reduce_partial_map", buffers.reduce_partial_map, len({(w.partial, w.q_start) for p in split for w in p})),
    ):
        detect_unless(tensor.shape[0] >= needed, f"{name} has {tensor.shape[0]} rows, the schedule writes {needed}")
    each, more = divmod(len(works), num_workgroups)
    counts = [0] + [each + (index < more) for index in range(num_workgroups)]
    buffers.work_indptr[: num_workgroups + 1] = torch.tensor(counts, dtype=torch.int32).cumsum(0)
    for index, work in enumerate(works):
        row = (
            work.sequence,
            work.partial,
            work.q_start,
            work.q_end,
            work.kv_start,
            work.kv_end,
            work.kv_after,
            work.heads,
        )
        buffers.work_info[index] = torch.tensor(row, dtype=torch.int64).to(torch.int32)
    ends, partials = [0], []
    for index, parts in enumerate(tiles):
        if parts[0].partial >= 0:
            buffers.reduce_final_map[index] = torch.tensor([parts[0].q_start, parts[0].q_end], dtype=torch.int32)
            partials += sorted({work.partial for work in parts})
        ends.append(len(partials))
    buffers.reduce_indptr.fill_(ends[-1])
    buffers.reduce_indptr[: len(ends)] = torch.tensor(ends, dtype=torch.int32)
    buffers.reduce_partial_map[: len(partials)] = torch.tensor(partials, dtype=torch.int32)
    addresses = [buffers.work_indptr.data_ptr(), buffers.work_info.data_ptr()]
    buffers.pointers.view(torch.int64)[:] = torch.tensor(addresses)


def read(work_indptr: Tensor, work_info: Tensor) -> list[Work]:
    """The works of all workgroups."""
    check_dtype("work_indptr", work_indptr, torch.int32)
    check_dtype("work_info", work_info, torch.int32)
    detect_unless(work_info.dim() == 2 and work_info.shape[1] == 8 and work_indptr.dim() == 1, "works are [works, 8]")
    bounds = ints(work_indptr)
    detect_unless(bounds == sorted(bounds) and bounds[0] == 0, "work_indptr holds no schedule")
    detect_unless(bounds[-1] <= work_info.shape[0], "work_indptr names works that work_info does not have")
    return [Work(*row) for row in ints(work_info[: bounds[-1]])]


def check_covers(works: list[Work], key_ranges: list[tuple[int, int]], query_rows: list[tuple[int, int]]) -> None:
    """Each sequence's keys are computed once, with the rows that it has now: the schedule is this step's."""
    detect_unless(
        all(0 <= work.sequence < len(key_ranges) for work in works),
        "the metadata is stale: it names sequences that this step does not have",
    )
    for sequence, ((begin, end), rows) in enumerate(zip(key_ranges, query_rows, strict=True)):
        parts = sorted({(w.kv_start, w.kv_end) for w in works if w.sequence == sequence})
        if end == begin or rows[0] == rows[1]:
            continue
        bounds = [begin, *(stop for _, stop in parts)]
        fits = [start for start, _ in parts] == bounds[:-1] and bounds[-1] == end
        detect_unless(
            fits,
            f"the metadata is stale, or of other heads: keys {begin}:{end} of sequence {sequence} are in {parts}",
        )
        same_rows = all((w.q_start, w.q_end) == rows for w in works if w.sequence == sequence)
        detect_unless(same_rows, f"the metadata is stale: sequence {sequence} has rows {rows}")


def split_keys(begin: int, end: int, granularity: int, num_parts: int) -> list[tuple[int, int]]:
    """Cut a range at multiples of the granularity, into parts of nearly one size."""
    blocks = max(1, -(-(end - begin) // granularity))
    num_parts = max(1, min(num_parts, blocks))
    cuts = [begin + (blocks * part // num_parts) * granularity for part in range(num_parts)] + [end]
    return list(pairwise(cuts))


def reduce(
    partial_output: Tensor,
    partial_lse: Tensor,
    reduce_indptr: Tensor,
    reduce_final_map: Tensor,
    reduce_partial_map: Tensor,
    final_output: Tensor,
    final_lse: Tensor | None,
) -> None:
    """Sum up the parts of each tile: rows of partial_output ``[rows, heads, D]`` into rows of final_output."""
    ends, final, partials = ints(reduce_indptr), ints(reduce_final_map), ints(reduce_partial_map)
    detect_unless(ends == sorted(ends) and ends[-1] <= len(partials), "reduce_indptr holds no schedule")
    for tile, (first, last) in enumerate(pairwise(ends)):
        if first == last:
            continue
        start, end = final[tile]
        rows = [slice(row, row + end - start) for row in partials[first:last]]
        detect_unless(
            0 <= start < end <= final_output.shape[0] and all(r.stop <= partial_output.shape[0] for r in rows),
            "the metadata is stale: it sums up rows that are not there",
        )
        sums = torch.stack([partial_lse[row] for row in rows])
        total = torch.logsumexp(sums, dim=0)
        weights = torch.exp(sums - total)
        outputs = torch.stack([partial_output[row] for row in rows])
        final_output[start:end] = (weights[..., None] * outputs).sum(0).to(final_output.dtype)
        if final_lse is not None:
            final_lse[start:end] = total


def reduce_partials(
    partial_output: Tensor,
    partial_lse: Tensor,
    reduce_indptr: Tensor,
    reduce_final_map: Tensor | None,
    reduce_partial_map: Tensor,
    final_output: Tensor,
    final_lse: Tensor | None,
) -> None:
    """mla_reduce_v1: partial_output ``[rows, 1, heads, D]`` and partial_lse ``[rows, 1, heads, 1]`` in float32."""
    if reduce_final_map is None:
        raise NotImplementedError("the emulator sums up with a reduce_final_map")
    for name, tensor in {"partial_output": partial_output, "partial_lse": partial_lse}.items():
        refuse_unless(tensor.dtype == torch.float32, f"{name} must be float32!")
    heads, dim = final_output.shape[-2:]
    rows, sums = partial_output.reshape(-1, heads, dim), partial_lse.reshape(-1, heads)
    reduce(rows, sums, reduce_indptr, reduce_final_map, reduce_partial_map, final_output, final_lse)
