"""Metadata of persistent MLA decode: how large its buffers are, and the schedule in them."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import torch
from torch import Tensor

from . import machine, work
from .checks import check_dtype, detect_unless, refuse_unless
from .host import ints
from .mla_kernels import metadata_fold

Shapes = tuple[tuple[int | tuple[int, int], torch.dtype], ...]


def buffer_shapes(batch: int, tiles_each: int, fast: bool, max_split_per_batch: int = -1) -> Shapes:
    """Shapes and types of work_metadata_ptrs, work_indptr, work_info, reduce_indptr, _final_map and _partial_map."""
    units = machine.cu_num()
    tiles = batch * tiles_each
    works = (batch + units - 1) * tiles_each if fast else tiles * units
    partials = min(batch + units - 1, (units - 1) * 2) * tiles_each if fast else tiles * units
    if max_split_per_batch > 0:
        partials = max(partials, tiles + min(units, max_split_per_batch * batch))
    return persistent_shapes(units, works, tiles, partials)


def pypi_buffer_shapes(batch: int, queries: int, heads: int, kv: torch.dtype, fast: bool) -> Shapes:
    """get_mla_metadata_info_v1 of PyPI."""
    assert heads % 16 == 0
    wide = heads == 16 or (heads == 128 and kv == machine.fp8())
    tiles_each = ceil(queries * heads / (128 if wide else 16))
    units = machine.cu_num()
    tiles = batch * tiles_each
    partials = min(batch + units - 1, (units - 1) * 2) * tiles_each
    if not fast:
        return persistent_shapes(units, tiles * units, tiles, tiles * units)
    return persistent_shapes(units, tiles + units - 1, tiles, partials)


def git_tiles_each(queries: int, heads: int, q: torch.dtype, kv: torch.dtype) -> int:
    """Tiles of query rows for a sequence: of 16, 64 or 128 rows, by what kernel serves it."""
    assert heads % 8 == 0
    rows, mi350 = queries * heads, machine.arch() == "gfx950"
    small, wide = q == kv == machine.fp8(), q == kv == torch.bfloat16
    if mi350 and (
        (wide and rows >= 64 and heads <= 64 and (rows < 128 or heads == 48)) or (small and (heads, queries) == (32, 3))
    ):
        return queries if heads * 2 > 64 else ceil(rows / 64)
    if (
        heads == 16
        or (small and heads == 64 and queries == 1)
        or (small and heads == 128 and not mi350)
        or (small and mi350 and (heads in (64, 128) or (heads, queries) == (32, 4)))
    ):
        return ceil(rows / 128)
    if mi350 and wide and (rows >= 128 or heads > 64) and heads != 48:
        return queries if heads * 2 > 128 else ceil(rows / 128)
    return ceil(rows / 16)


def persistent_shapes(units: int, works: int, tiles: int, partials: int) -> Shapes:
    int32 = torch.int32
    return (
        (2, torch.uint64),
        (units + 1, int32),
        ((works, 8), int32),
        (tiles + 1, int32),
        ((tiles, 2), int32),
        (partials, int32),
    )


def fill(
    buffers: work.Buffers,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    last_page_lens: Tensor | None,
    heads: int,
    kv_heads: int,
    causal: bool,
    *,
    release: str,
    page_size: int,
    kv_granularity: int,
    max_seqlen_qo: int,
    uni_seqlen_qo: int,
    topk: int,
    max_split_per_batch: int,
    q: torch.dtype,
    kv: torch.dtype,
) -> None:
    """Write the schedule of this step into the caller's buffers."""
    if topk >= 0:
        raise NotImplementedError("the emulator has no metadata for sparse attention")
    refuse_unless(kv_granularity & (kv_granularity - 1) == 0, "kv_granularity Must be power of 2!")
    for name, indptr in {"seqlens_qo_indptr": qo_indptr, "seqlens_kv_indptr": kv_indptr}.items():
        refuse_unless(indptr.dtype == torch.int32, f"{name}'s element type should be int!")
        refuse_unless(indptr.stride(0) == 1, f"{name} should be continuous!")
    detect_unless(kv_heads == 1, f"num_heads_k is {kv_heads}, MLA has one")
    q_starts, kv_starts = ints(qo_indptr), ints(kv_indptr)
    for name, starts in {"seqlens_qo_indptr": q_starts, "seqlens_kv_indptr": kv_starts}.items():
        detect_unless(starts == sorted(starts) and starts[0] == 0, f"{name} is {starts}")
    detect_unless(
        len(q_starts) == len(kv_starts), f"{len(q_starts) - 1} sequences of queries, {len(kv_starts) - 1} of keys"
    )
    if last_page_lens is not None:
        check_dtype("kv_last_page_lens", last_page_lens, torch.int32)
        detect_unless(last_page_lens.numel() == len(q_starts) - 1, "kv_last_page_lens has another batch size")
        lasts = ints(last_page_lens)
        detect_unless(
            all(0 < last <= page_size for last, (a, b) in zip(lasts, pairwise(kv_starts), strict=True) if b > a),
            f"kv_last_page_lens {lasts} for pages of {page_size}",
        )
    queries = max((b - a for a, b in pairwise(q_starts)), default=1)
    detect_unless(
        max_seqlen_qo < 1 or queries <= max_seqlen_qo, f"max_seqlen_qo is {max_seqlen_qo}, a sequence has {queries}"
    )
    detect_unless(
        uni_seqlen_qo < 1 or {b - a for a, b in pairwise(q_starts)} <= {0, uni_seqlen_qo},
        f"uni_seqlen_qo is {uni_seqlen_qo}, sequences begin at {q_starts}",
    )
    detect_unless(causal or queries <= 1, "is_causal is False, the kernels mask")
    factor = metadata_fold(release, heads * kv_heads, max(queries, max_seqlen_qo), q, kv)
    tiles = _tiles(buffers, q_starts, kv_starts, factor, kv_granularity, max_split_per_batch)
    work.write(buffers, tiles, machine.cu_num() // kv_heads)


def _tiles(
    buffers: work.Buffers, q_starts: list[int], kv_starts: list[int], factor: int, granularity: int, most_parts: int
) -> list[list[work.Work]]:
    """One tile for a sequence (for 16 of its heads, where folded), in two parts as long as the buffers have room."""
    num_tiles = (len(q_starts) - 1) * factor
    room = min(buffers.reduce_partial_map.shape[0] // 2, buffers.work_info.shape[0] - num_tiles)
    tiles, next_partial = [], 0
    for sequence, ((q_start, q_end), (begin, end)) in enumerate(
        zip(pairwise(q_starts), pairwise(kv_starts), strict=True)
    ):
        queries = q_end - q_start
        for group in range(factor):
            first = q_start * factor + group * queries
            wanted = 2 if room > 0 and most_parts != 1 else 1
            cuts = work.split_keys(begin, end, granularity, wanted)
            room -= len(cuts) - 1
            parts = []
            for start, stop in cuts:
                partial = next_partial if len(cuts) > 1 else -1
                next_partial += queries if len(cuts) > 1 else 0
                number = sequence * factor + group
                parts.append(work.Work(number, partial, first, first + queries, start, stop, end - stop))
            tiles.append(parts)
    return tiles
