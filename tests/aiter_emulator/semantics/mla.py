"""Absorbed multi-head latent attention over ``[pages, page_size, 1, 576]``: keys are rows, values their first 512."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from . import machine, work
from .attend import attend, visible
from .checks import check_apart, check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .host import check_index, ints, longest, page_ids, starts_of, take
from .mla_kernels import QK_DIM, V_DIM, fold, refuse_without_decode_kernel


@dataclass(frozen=True)
class Latents:
    """The cache and the pages of each sequence, checked."""

    cache: Tensor
    pages: list[list[int]]
    lengths: list[int]
    scale: float

    def tokens(self, sequence: int, first_page: int = 0, last_page: int | None = None) -> Tensor:
        """``[tokens, 1, 576]`` of some pages of a sequence."""
        rows = take(self.cache, self.pages[sequence][first_page:last_page])
        left = self.lengths[sequence] - first_page * self.cache.shape[1]
        return rows.float().reshape(-1, 1, QK_DIM)[:left] * self.scale


def latents(
    cache: Tensor, kv_indptr: Tensor, kv_indices: Tensor, last_page_lens: Tensor, page_size: int, scale: Tensor | None
) -> Latents:
    """What the kernels read; every page of every sequence exists, and the last is as full as it says."""
    check_shape("kv_buffer", cache, None, page_size, 1, QK_DIM)
    detect_unless(page_size & (page_size - 1) == 0, f"pages of {page_size}: the kernel shifts by a logarithm")
    detect_unless(cache.shape[0] == 0 or cache[0].is_contiguous(), "kv_buffer: a page must have no holes")
    check_index("kv_indices", kv_indices)
    check_index("kv_last_page_lens", last_page_lens)
    starts = starts_of("kv_indptr", kv_indptr, kv_indices.numel())
    ids, lasts = ints(kv_indices), ints(last_page_lens)
    detect_unless(len(lasts) >= len(starts) - 1, f"kv_last_page_lens has {len(lasts)} entries for {len(starts) - 1}")
    pages, lengths = [], []
    for (a, b), last in zip(pairwise(starts), lasts, strict=False):
        detect_unless(a == b or 0 < last <= page_size, f"kv_last_page_lens {lasts} for pages of {page_size}")
        lengths.append((b - a - 1) * page_size + last if b > a else 0)
        pages.append(page_ids("kv_indices", ids[a:b], lengths[-1], page_size, cache.shape[0]))
    return Latents(cache, pages, lengths, _scalar("kv_scale", scale, cache.dtype == machine.fp8()))


def decode(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    max_seqlen_q: int,
    *,
    release: str,
    page_size: int,
    sm_scale: float | None,
    logit_cap: float,
    metadata: work.Buffers | None,
    q_scale: Tensor | None,
    kv_scale: Tensor | None,
    num_kv_splits: int | None = None,
    return_lse: bool = False,
) -> Tensor | None:
    """Writes o ``[tokens, heads, 512]``; returns the sums' logarithm ``[tokens, heads]`` if it is asked for."""
    assert logit_cap <= 0, f"{logit_cap=} is not support yet"
    sm_scale = QK_DIM**-0.5 if sm_scale is None else sm_scale
    _check_rows(q, o)
    heads = q.shape[1]
    starts = starts_of("qo_indptr", qo_indptr, q.shape[0])
    detect_unless(max_seqlen_q >= longest(starts), f"max_seqlen_q is {max_seqlen_q}, a sequence has {longest(starts)}")
    detect_unless(release == "git" or page_size == 1, "this release counts kv_indptr in tokens: pages are of one")
    cache = latents(kv_buffer, kv_indptr, kv_indices, kv_last_page_lens, page_size, kv_scale)
    detect_unless(
        len(cache.lengths) == len(starts) - 1, f"{len(starts) - 1} sequences of queries, {len(cache.lengths)} of keys"
    )
    queries = q.float() * _scalar("q_scale", q_scale, q.dtype == machine.fp8())
    if (
        metadata is not None
        and num_kv_splits is None
        and _drops_metadata(release, len(starts) - 1, q, kv_buffer, max_seqlen_q)
    ):
        metadata = None
    if metadata is None:
        assert release == "git" or heads in (16, 128), f"nhead={heads} not supported"
        refuse_without_decode_kernel(release, heads, max_seqlen_q, q.dtype, kv_buffer.dtype, False, return_lse)
        sums = torch.full((q.shape[0], heads), float("nan"))
        _each_sequence(queries, o, starts, cache, sm_scale, sums)
        return sums if return_lse else None
    factor = fold(release, heads, max_seqlen_q, q.dtype, kv_buffer.dtype)
    native = 16 if factor > 1 else heads
    refuse_without_decode_kernel(release, native, max_seqlen_q, q.dtype, kv_buffer.dtype, True, return_lse)
    sums = _persistent(queries, o, starts, cache, sm_scale, metadata, factor, max_seqlen_q, ints(kv_indptr))
    return sums if return_lse else None


def prefill(
    q: Tensor,
    kv_buffer: Tensor,
    o: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_lens: Tensor,
    max_seqlen_q: int,
    sm_scale: float | None,
    logit_cap: float,
) -> tuple[Tensor, Tensor]:
    """Writes o; returns it and the sums' logarithm ``[tokens, 1, heads, 1]``."""
    assert logit_cap <= 0, f"{logit_cap=} is not support yet"
    if sm_scale is None:
        raise UnboundLocalError("cannot access local variable 'qk_head_dim' where it is not associated with a value")
    _check_rows(q, o)
    refuse_unless(q.shape[1] in (16, 128), "only support num_q_heads/num_kv_heads==16 or 128 for now")
    refuse_unless(q.dtype == torch.bfloat16, f"unsupport current Q_type:{q.dtype}")
    check_dtype("kv_buffer", kv_buffer, torch.bfloat16)
    starts = starts_of("qo_indptr", qo_indptr, q.shape[0])
    detect_unless(max_seqlen_q >= longest(starts), f"max_seqlen_q is {max_seqlen_q}, a sequence has {longest(starts)}")
    cache = latents(kv_buffer, kv_indptr, kv_indices, kv_last_page_lens, kv_buffer.shape[1], None)
    detect_unless(
        len(cache.lengths) == len(starts) - 1, f"{len(starts) - 1} sequences of queries, {len(cache.lengths)} of keys"
    )
    sums = torch.full((q.shape[0], q.shape[1]), float("nan"))
    _each_sequence(q.float(), o, starts, cache, sm_scale, sums)
    return o, sums[:, None, :, None]


def _check_rows(q: Tensor, o: Tensor) -> None:
    refuse_unless(q.is_contiguous(), "only support Q.is_contiguous() for now")
    check_shape("q", q, None, None, QK_DIM)
    check_shape("o", o, q.shape[0], q.shape[1], V_DIM)
    check_dtype("o", o, torch.bfloat16)
    check_contiguous("o", o)
    check_apart(o=o, q=q)


def _scalar(name: str, scale: Tensor | None, needed: bool) -> float:
    if not needed:
        return 1.0
    refuse_unless(scale is not None, f"fp8 requires {name}")
    check_dtype(name, scale, torch.float32)
    detect_unless(scale.numel() == 1, f"{name} has {scale.numel()} numbers, the kernel reads the first")
    return float(scale.reshape(-1).numpy()[0])


def _drops_metadata(release: str, batch: int, q: Tensor, kv: Tensor, queries: int) -> bool:
    """Where git falls back to the kernel without metadata: many sequences of 16 bf16 heads on gfx950."""
    profile = q.dtype == kv.dtype == torch.bfloat16 and q.shape[1] == 16 and queries == 1
    return release == "git" and machine.arch() == "gfx950" and profile and batch >= 32


def _each_sequence(q: Tensor, o: Tensor, starts: list[int], cache: Latents, scale: float, sums: Tensor) -> None:
    for sequence, (first, last) in enumerate(pairwise(starts)):
        tokens, length = cache.tokens(sequence), cache.lengths[sequence]
        detect_unless(length == 0 or length >= last - first, f"{last - first} queries at {length} tokens of context")
        if length == 0:
            o[first:last] = float("nan")
            continue
        result, lse = attend(q[first:last], tokens, tokens[..., :V_DIM], scale, visible(last - first, length, True))
        o[first:last] = result.to(o.dtype)
        sums[first:last] = lse.T


def _persistent(
    q: Tensor,
    o: Tensor,
    starts: list[int],
    cache: Latents,
    scale: float,
    metadata: work.Buffers,
    factor: int,
    max_seqlen_q: int,
    kv_starts: list[int],
) -> Tensor:
    metadata.check()
    addresses = [metadata.work_indptr.data_ptr(), metadata.work_info.data_ptr()]
    detect_unless(ints(metadata.pointers.view(torch.int64)) == addresses, "work_metadata_ptrs names other buffers")
    works = work.read(metadata.work_indptr, metadata.work_info)
    heads, page_size = q.shape[1] // factor, cache.cache.shape[1]
    moves = factor > 1 and max_seqlen_q > 1
    if moves:
        detect_unless(
            {b - a for a, b in pairwise(starts)} == {max_seqlen_q}, "heads are folded: every sequence has max_seqlen_q"
        )
    rows = [
        (first * factor + group * (last - first), first * factor + (group + 1) * (last - first))
        for first, last in pairwise(starts)
        for group in range(factor)
    ]
    work.check_covers(works, [bounds for bounds in pairwise(kv_starts) for _ in range(factor)], rows)
    q = _folded(q, factor, max_seqlen_q)
    result = torch.full((q.shape[0], heads, V_DIM), float("nan"))
    sums = torch.full((q.shape[0], heads), float("nan"))
    num_partials = metadata.reduce_partial_map.shape[0] * max_seqlen_q
    partial_output = torch.full((num_partials, heads, V_DIM), float("nan"))
    partial_sums = torch.full((num_partials, heads), float("nan"))
    for item in works:
        sequence = item.sequence // factor
        first_page, last_page = item.kv_start - kv_starts[sequence], item.kv_end - kv_starts[sequence]
        if first_page == last_page or item.q_start == item.q_end:
            continue
        tokens = cache.tokens(sequence, first_page, last_page)
        seen = visible(item.q_end - item.q_start, cache.lengths[sequence], True)
        seen = seen[:, first_page * page_size : first_page * page_size + tokens.shape[0]]
        out, lse = attend(q[item.q_start : item.q_end], tokens, tokens[..., :V_DIM], scale, seen)
        into, start = (
            ((result, sums), item.q_start) if item.partial < 0 else ((partial_output, partial_sums), item.partial)
        )
        into[0][start : start + out.shape[0]], into[1][start : start + out.shape[0]] = out, lse.T
    work.reduce(
        partial_output,
        partial_sums,
        metadata.reduce_indptr,
        metadata.reduce_final_map,
        metadata.reduce_partial_map,
        result,
        sums,
    )
    result = _unfolded(result, factor, max_seqlen_q).to(o.dtype)
    # Folded heads of several queries come back in another order: AITER gives `o` new memory instead of writing the old.
    o.set_(result.contiguous()) if moves else o.copy_(result)
    return _unfolded(sums[..., None], factor, max_seqlen_q)[..., 0]


def _folded(q: Tensor, factor: int, queries: int) -> Tensor:
    """``[sequences * queries, factor * heads, D]`` to ``[sequences * factor * queries, heads, D]``."""
    heads = q.shape[1] // factor
    return (
        q.reshape(-1, queries, factor, heads, q.shape[2]).transpose(1, 2).reshape(-1, heads, q.shape[2])
        if factor > 1
        else q
    )


def _unfolded(rows: Tensor, factor: int, queries: int) -> Tensor:
    heads = rows.shape[1]
    if factor == 1:
        return rows
    return (
        rows.reshape(-1, factor, queries, heads, rows.shape[2])
        .transpose(1, 2)
        .reshape(-1, factor * heads, rows.shape[2])
    )
