"""The warpgroups that multiply in `hopper_prefill_kernel`: tiles of keys folded into the softmax of their query rows.

Shapes: M query rows of a warpgroup (tokens x heads of a run), N keys of a tile, D head_dim.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from atom_kernels.attention.hopper.loading import CHUNK, ROWS
from atom_kernels.attention.hopper.work import hear

# The highest score of rows that have seen no key yet: below any other, and finite, so that differences are.
_NOTHING = gl.constexpr(-1.0e30)
_LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def attend_tiles(
    part, tensors, scale, queries, keys, values, mail, NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
    HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """Rows ``64 * part:64 * (part + 1)`` of every tile of queries that the loading warps tell of."""
    out_ptr, sinks_ptr, o_smem = tensors
    q_smem, q_full, q_empty = queries
    BLOCK_N: gl.constexpr = keys[0].shape[1]
    HEAD_DIM: gl.constexpr = keys[0].shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    q = q_smem.index(part)
    m = part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    turn = 0
    count = 0
    run, _request, start, num_queries, length, first_query, num_tiles = hear(mail, turn, 4)
    while num_tiles > 0:
        first_position = length - num_queries + first_query
        last_seen = gl.minimum(first_position + m // GROUP, length - 1)
        best = gl.full([ROWS], _NOTHING, gl.float32, gl.SliceLayout(1, s_layout))
        total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, s_layout))
        o = gl.zeros([ROWS, HEAD_DIM], gl.float32, o_layout)
        mbarrier.wait(q_full.index(part), turn & 1)
        s = warpgroup_mma_wait(0, deps=[_scores(q, keys, count)])
        _release(keys, count)
        weights, _, best, total = _weights(s, best, total, last_seen, (num_tiles - 1) * BLOCK_N, scale, True)
        weights = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, o_layout, 2))
        if (num_tiles * BLOCK_N > length) & (length % PAGE != 0):
            _blank_rows(values, count, length - (num_tiles - 1) * BLOCK_N, PAGE)
        # Keys up to the first query are seen by all rows.
        masked = gl.maximum(num_tiles - gl.maximum(first_position + 1, 0) // BLOCK_N, 1)
        for step in range(1, masked):
            first = (num_tiles - 1 - step) * BLOCK_N
            o, weights, best, total = _fold_tile(
                q, o, weights, best, total, last_seen, first, scale, keys, values, count + step, True
            )  # fmt: skip
        for step in range(masked, num_tiles):
            o, weights, best, total = _fold_tile(
                q, o, weights, best, total, last_seen, 0, scale, keys, values, count + step, False
            )  # fmt: skip
        mbarrier.arrive(q_empty.index(part))
        count += num_tiles
        o = _sums(weights, o, values, count - 1)
        factor = _last_factor(best * scale, total, sinks_ptr + run * GROUP + m % GROUP, HAS_SINKS)
        o = warpgroup_mma_wait(0, deps=[o])
        _release(values, count - 1)
        o = o * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]
        token, query = start + first_query, num_queries - first_query
        _store_rows(out_ptr, o.to(q.dtype), o_smem.index(part), part, run, token, query, NUM_HEADS, GROUP)
        turn += 1
        run, _request, start, num_queries, length, first_query, num_tiles = hear(mail, turn, 4)


@gluon.jit
def _take(ring, at):
    """The tile at `at` of `ring`, once it has arrived."""
    tiles, full, _ = ring
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(full.index(at % STAGES), (at // STAGES) & 1)
    return tiles.index(at % STAGES)


@gluon.jit
def _release(ring, at):
    """The place of the tile at `at` of `ring` may be filled anew, as far as this warpgroup goes."""
    tiles, _, empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.arrive(empty.index(at % STAGES))


@gluon.jit
def _scores(q, keys, at):
    """Raw scores ``[M, N]`` of the tile at `at` of the rings, on their way."""
    k = _take(keys, at)
    BLOCK_N: gl.constexpr = k.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    return warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _sums(weights, o, values, at):
    """`o` with the weighted values of the tile at `at` of the rings, on their way."""
    return warpgroup_mma(weights, _take(values, at), o, is_async=True)


@gluon.jit
def _fold_tile(q, o, weights, best, total, last_seen, first, scale, keys, values, at, MASKED: gl.constexpr):
    """Scores of the tile at `at` of the rings, and sums of the one before: its softmax runs beside their product.

    Args:
        first: key of the tile, where it is MASKED: not seen by all rows.
    """
    o_layout: gl.constexpr = o.type.layout
    s = _scores(q, keys, at)
    o = _sums(weights, o, values, at - 1)
    s = warpgroup_mma_wait(1, deps=[s])
    _release(keys, at)
    next_weights, shrink, best, total = _weights(s, best, total, last_seen, first, scale, MASKED)
    # It arrived long ago. But taking it branches: done earlier, ptxas would wait for the sums before the softmax.
    _take(values, at - 1)
    o = warpgroup_mma_wait(0, deps=[o])
    _release(values, at - 1)
    o = o * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    return o, gl.convert_layout(next_weights.to(weights.dtype), weights.type.layout), best, total


@gluon.jit
def _weights(s, best, total, last_seen, first, scale, MASKED: gl.constexpr):
    """From raw scores: weights ``[M, N]``, factors for earlier sums, the highest scores and totals of weights."""
    if MASKED:
        keys = first + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = gl.where(keys[None, :] <= last_seen[:, None], s, _NOTHING)
    higher = gl.maximum(best, gl.max(s, axis=1))
    shrink = gl.exp2((best - higher) * scale)
    # Rows that see none of these keys have no highest score to compare with.
    offset = gl.where(higher > _NOTHING, higher, 0.0) if MASKED else higher
    weights = gl.exp2(s * scale - (offset * scale)[:, None])
    return weights, shrink, higher, total * shrink + gl.sum(weights, axis=1)


@gluon.jit
def _last_factor(best, total, sink_ptrs, HAS_SINKS: gl.constexpr):
    """The last factor of the sums; rows that saw no key become zeros."""
    if HAS_SINKS:
        sink = gl.load(sink_ptrs).to(gl.float32) * _LOG2_E
        higher = gl.maximum(best, sink)
        shrink = gl.exp2(best - higher)
        return shrink / (total * shrink + gl.exp2(sink - higher))
    return gl.where(total > 0.0, 1.0 / total, 0.0)


@gluon.jit
def _blank_rows(values, at, present, PAGE: gl.constexpr):
    """Zeros behind value `present` of the tile at `at`: anything may lie in the rest of its page, and a weight of 0
    does not hide NaN. All warpgroups do this, to the same effect."""
    tiles, _, _ = values
    STAGES: gl.constexpr = tiles.shape[0]
    CHUNKS: gl.constexpr = tiles.shape[2] // CHUNK
    PAGES: gl.constexpr = tiles.shape[1] // PAGE
    _take(values, at)
    pages = tiles._reinterpret(tiles.dtype, [STAGES * CHUNKS * PAGES, PAGE, CHUNK], tiles.layout)
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    inside = gl.arange(0, PAGE, gl.SliceLayout(1, layout)) < present % PAGE
    for chunk in gl.static_range(CHUNKS):
        page = pages.index((at % STAGES * CHUNKS + chunk) * PAGES + present // PAGE)
        page.store(gl.where(inside[:, None], page.load(layout), gl.zeros([PAGE, CHUNK], tiles.dtype, layout)))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _store_rows(
    out_ptr, o, staged, part, run, token, num_queries, NUM_HEADS: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Outputs ``[M, D]`` of the tile's queries within the request, through shared memory: rows are written whole."""
    HEAD_DIM: gl.constexpr = o.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    staged.store(o)
    gl.thread_barrier()
    m = part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    row = (token + m // GROUP).to(gl.int64) * NUM_HEADS + run * GROUP + m % GROUP
    at = row[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, layout))[None, :]
    gl.store(out_ptr + at, staged.load(layout), mask=(m // GROUP < num_queries)[:, None])
