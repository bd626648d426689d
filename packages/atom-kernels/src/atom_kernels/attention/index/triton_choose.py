"""The choice of a lightning index in Triton: the highest scores of each row, of equal ones the first.

A program has a segment of a row in its registers, finds the lowest score that is taken bit by bit, and hands on the
positions above it. The best of the whole row are among the best of its segments: these make a shorter row, and so on,
until one segment has all. No bit of the result depends on an order of threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.sampling.triton_rows import key_of
from atom_kernels.triton.support import wait_for_inputs

_LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def _taken(value, here, TOP_K: tl.constexpr):
    """1 for each of the TOP_K highest values, of equal ones the first, or for all where there are no more; else 0."""
    # The highest threshold that TOP_K values reach, from its highest bit on; integers have their sign turned.
    threshold = tl.full([], _LOWEST, tl.int32)
    for i in range(32):
        higher = threshold ^ (tl.full([], 1, tl.int32) << (31 - i))
        reached = tl.sum((here & (value >= higher)).to(tl.int32), axis=0)
        threshold = tl.where(reached >= TOP_K, higher, threshold)
    above = (here & (value > threshold)).to(tl.int32)
    is_equal = (here & (value == threshold)).to(tl.int32)
    missing = TOP_K - tl.sum(above, axis=0)
    if tl.sum(is_equal, axis=0) > missing:
        earlier = tl.cumsum(is_equal, axis=0) - is_equal
        is_equal = is_equal & (earlier < missing).to(tl.int32)
    return above + is_equal


# What changes from step to step must not make Triton compile again.
@triton.jit(do_not_specialize=["first_row", "scores_stride", "best_stride"])
def choose_kernel(
    scores_ptr, positions_ptr, visible_ptr, out_ptr, best_scores_ptr, best_positions_ptr,
    first_row, scores_stride, best_stride,
    LEVEL: tl.constexpr, TOP_K: tl.constexpr, SEGMENT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a segment and a row, counted from `first_row`. Rows are as long as LEVEL rounds before left them.

    A row of one segment is finished: its positions go to out ``[T, TOP_K]``, -1 behind the last. Others give the best
    of each segment to `best`, one segment's behind the other's. Positions of the first round are a score's own.
    """
    segment, row = tl.program_id(0), tl.program_id(1)
    token = (first_row + row).to(tl.int64)
    # Written before the step's first layer.
    count = tl.load(visible_ptr + token)
    is_short = count <= TOP_K
    for _ in tl.static_range(LEVEL):
        left = count // SEGMENT * TOP_K + tl.minimum(count % SEGMENT, TOP_K)
        # Finished before: nothing is left.
        count = tl.where(count > SEGMENT, left, 0)
    out_ptr += token * TOP_K
    nth = tl.arange(0, SEGMENT)
    begin = segment * SEGMENT
    wait_for_inputs(DEPENDENT)
    if (LEVEL == 0) & is_short:
        if segment == 0:
            tl.store(out_ptr + nth, tl.where(nth < count, nth, -1), mask=nth < TOP_K)
    elif begin < count:
        here = begin + nth < count
        scores = tl.load(scores_ptr + row.to(tl.int64) * scores_stride + begin + nth, mask=here, other=0.0)
        # Both zeros are one.
        take = _taken(key_of(scores + 0.0), here, TOP_K)
        place = tl.cumsum(take, axis=0) - take
        positions = begin + nth
        if LEVEL > 0:
            at = row.to(tl.int64) * scores_stride + begin + nth
            positions = tl.load(positions_ptr + at, mask=here, other=0)
        if count <= SEGMENT:
            tl.store(out_ptr + place, positions, mask=take > 0)
        else:
            best = row.to(tl.int64) * best_stride + segment * TOP_K + place
            tl.store(best_scores_ptr + best, scores, mask=take > 0)
            tl.store(best_positions_ptr + best, positions, mask=take > 0)
