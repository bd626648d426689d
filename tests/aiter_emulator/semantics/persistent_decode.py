"""pa_persistent_fwd: paged decode that workgroups share by a schedule, over fp8 pages of 1024 tokens."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from . import machine, work
from .asm_decode import HEAD_DIM
from .attend import attend, visible
from .checks import check_apart, check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .host import check_index, ints, longest, page_ids, starts_of, take
from .layouts import (
    check_same_page_strides,
    check_shuffled_values,
    check_x_packed_keys,
    scales_of_tokens,
    tokens_of_values,
    tokens_of_x_packed_keys,
)
from .mla_work import Shapes, persistent_shapes

PER_TOKEN = 2
LARGEST_TILE = 64


def buffer_shapes(batch: int, kv_heads: int) -> Shapes:
    """Shapes and types of the six buffers, in the order of `mla_work.Shapes`."""
    units = machine.cu_num()
    return persistent_shapes(units, (batch + units - 1) * kv_heads, batch, min(batch + units - 1, (units - 1) * 2))


def fill(
    buffers: work.Buffers,
    qo_indptr: Tensor,
    pages_kv_indptr: Tensor,
    context_lens: Tensor,
    group: int,
    kv_heads: int,
    block_size: int,
) -> None:
    """Write the schedule: works name entries of kv_indices, and in their last word the first and last head."""
    q_starts, kv_starts = starts_of("seqlens_qo_indptr", qo_indptr, 2**31), ints(pages_kv_indptr)
    check_index("pages_kv_indptr", pages_kv_indptr)
    check_index("context_lens", context_lens)
    lengths = ints(context_lens)
    detect_unless(
        len(lengths) == len(q_starts) - 1 == len(kv_starts) - 1, "batch sizes of the metadata's inputs differ"
    )
    pages = [b - a for a, b in pairwise(kv_starts)]
    detect_unless(
        all(count == -(-length // block_size) for count, length in zip(pages, lengths, strict=True)),
        f"{pages} pages of {block_size} for context_lens {lengths}",
    )
    room = min(buffers.reduce_partial_map.shape[0] // 2, buffers.work_info.shape[0] // kv_heads - len(lengths))
    tiles, next_partial = [], 0
    for sequence, ((first, last), (begin, end)) in enumerate(zip(pairwise(q_starts), pairwise(kv_starts), strict=True)):
        cuts = work.split_keys(begin, end, 1, 2 if room > 0 else 1)
        room -= len(cuts) - 1
        parts = []
        for start, stop in cuts:
            partial = next_partial if len(cuts) > 1 else -1
            next_partial += last - first if len(cuts) > 1 else 0
            for head in range(kv_heads):
                heads = head * group | (head + 1) * group << 16
                parts.append(work.Work(sequence, partial, first, last, start, stop, 0, heads))
        tiles.append(parts)
    work.write(buffers, tiles, machine.cu_num())


def pa_persistent(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    output: Tensor,
    max_qlen: int,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    context_lens: Tensor,
    work_indptr: Tensor,
    work_info: Tensor,
    reduce_indptr: Tensor,
    reduce_final_map: Tensor,
    reduce_partial_map: Tensor,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    softmax_scale: float | None,
    mask: int,
    quant_type: int,
) -> tuple[Tensor, Tensor]:
    """Writes output ``[queries, heads, 128]``; returns the partial results and the sums ``[queries, heads]``."""
    detect_unless(Q.shape[-1] == HEAD_DIM, f"the kernels are for heads of 128, not {Q.shape[-1]}")
    wanted = None if softmax_scale is None else abs(softmax_scale - HEAD_DIM**-0.5) < 1e-6
    detect_unless(wanted is not False, f"softmax_scale {softmax_scale} never reaches the kernel: it is 1/sqrt(128)")
    check_x_packed_keys("K", K, HEAD_DIM)
    check_shuffled_values("V", V, K, HEAD_DIM)
    check_same_page_strides(K, V)
    group, page_size = Q.shape[1] // K.shape[1], K.shape[3]
    refuse_unless(Q.dtype == torch.bfloat16 and K.dtype == machine.fp8(), f"no kernel for {Q.dtype} and {K.dtype}")
    refuse_unless(
        page_size == 1024 and quant_type == PER_TOKEN, f"no kernel for pages of {page_size}, quant {quant_type}"
    )
    refuse_unless(mask == 1, f"no kernel for mask {mask}")
    refuse_unless(
        group * max_qlen <= LARGEST_TILE, f"required qTile {group} * {max_qlen} exceeds maximum available qTile"
    )
    check_shape("output", output, *Q.shape)
    check_contiguous("output", output)
    check_apart(output=output, Q=Q)
    starts = starts_of("qo_indptr", qo_indptr, Q.shape[0])
    detect_unless(longest(starts) <= max_qlen, f"max_qlen is {max_qlen}, a sequence has {longest(starts)} queries")
    kv_starts = starts_of("kv_indptr", kv_indptr, kv_indices.numel(), len(starts) - 1)
    check_index("kv_indices", kv_indices)
    check_index("context_lens", context_lens)
    ids, lengths = ints(kv_indices), ints(context_lens)
    works = work.read(work_indptr, work_info)
    work.check_covers(works, list(pairwise(kv_starts)), list(pairwise(starts)))
    partial_output = torch.full((reduce_partial_map.shape[0] * max_qlen, *Q.shape[1:]), float("nan"))
    partial_sums = torch.full(partial_output.shape[:2], float("nan"))
    result, sums = torch.full(Q.shape, float("nan")), torch.full(Q.shape[:2], float("nan"))
    for item in works:
        length, first_page = lengths[item.sequence], item.kv_start - kv_starts[item.sequence]
        pages = page_ids("kv_indices", ids[item.kv_start : item.kv_end], item.kv_end - item.kv_start, 1, K.shape[0])
        tokens = slice(0, length - first_page * page_size)
        keys = (tokens_of_x_packed_keys(take(K, pages)) * _scales("K_QScale", k_scales, K, pages))[tokens]
        values = (tokens_of_values(take(V, pages)) * _scales("V_QScale", v_scales, K, pages))[tokens]
        begin, end = item.heads & 0xFFFF, item.heads >> 16
        kv_head = slice(begin // group, end // group)
        seen = visible(item.q_end - item.q_start, length, True)[:, first_page * page_size :][:, : keys.shape[0]]
        queries = Q[item.q_start : item.q_end, begin:end]
        out, lse = attend(queries, keys[:, kv_head], values[:, kv_head], HEAD_DIM**-0.5, seen)
        into, row = (
            ((result, sums), item.q_start) if item.partial < 0 else ((partial_output, partial_sums), item.partial)
        )
        into[0][row : row + out.shape[0], begin:end], into[1][row : row + out.shape[0], begin:end] = out, lse.T
    work.reduce(partial_output, partial_sums, reduce_indptr, reduce_final_map, reduce_partial_map, result, sums)
    output.copy_(result)
    return partial_output[:, None], sums


def _scales(name: str, scales: Tensor | None, K: Tensor, ids: list[int]) -> Tensor:
    detect_unless(scales is not None, f"a cache of {K.dtype} without {name}: the kernel reads at address 0")
    check_dtype(name, scales, torch.float32)
    check_shape(name, scales, K.shape[0], K.shape[1], K.shape[3])
    check_contiguous(name, scales)
    return scales_of_tokens(take(scales, ids))
