"""Which pairs an expert has, in Triton.

A *pair* is a token and one of its experts; pair p belongs to token ``p // K``. E: experts, P: pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit(do_not_specialize=["num_pairs", "part_size"])
def sort_pairs_kernel(
    ids_ptr, order_ptr, places_ptr, starts_ptr, num_pairs, part_size,
    NUM_EXPERTS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Pairs by expert, each expert's in their own order: program (e, part) places those of e in one part of all.

    It counts what comes before them: pairs of the experts before e, and those of e in the parts before. `order` or
    `places`, its inverse, is left out where it is None. The size of a part is a multiple of BLOCK.
    Every program reads all ids, from the L2 cache: cheaper than a second launch or atomics, and always the same order.
    """
    wait_for_inputs(DEPENDENT)
    expert = tl.program_id(0)
    first_own = tl.program_id(1) * part_size
    before = tl.zeros([BLOCK], tl.int32)
    before_part = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
        before += ((ids >= 0) & (ids < expert)).to(tl.int32)
        before_part += ((ids == expert) & (first < first_own)).to(tl.int32)
    start = tl.sum(before, axis=0)
    tl.store(starts_ptr + expert, start)
    start += tl.sum(before_part, axis=0)
    end_own = tl.minimum(first_own + part_size, num_pairs)
    for first in range(first_own, end_own, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        own = (tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1) == expert).to(tl.int32)
        places = start + tl.cumsum(own, axis=0) - 1
        if order_ptr is not None:
            tl.store(order_ptr + places, pairs, mask=own > 0)
        if places_ptr is not None:
            tl.store(places_ptr + pairs, places, mask=own > 0)
        start += tl.sum(own, axis=0)
    if (expert == NUM_EXPERTS - 1) & (end_own == num_pairs):
        tl.store(starts_ptr + NUM_EXPERTS, start)


@triton.jit
def pairs_of_slot(
    ids_ptr, slot, num_pairs, NUM_EXPERTS: tl.constexpr, PAIRS_BLOCK: tl.constexpr, BY_PAIR: tl.constexpr
):
    """(a slot's expert, the place of each pair among that expert's or -1, how many it has) of unsorted pairs."""
    pairs_P = tl.arange(0, PAIRS_BLOCK)
    ids_P = tl.load(ids_ptr + pairs_P, mask=pairs_P < num_pairs, other=-1)
    expert = slot
    if BY_PAIR:
        expert = tl.load(ids_ptr + slot)
    own_P = ids_P == expert
    rank_P = tl.where(own_P, tl.cumsum(own_P.to(tl.int32), axis=0) - 1, -1)
    count = tl.sum(own_P.to(tl.int32), axis=0)
    if BY_PAIR:
        named_before = tl.min(tl.where(own_P, pairs_P, PAIRS_BLOCK), axis=0) < slot
        count = tl.where(named_before | (expert < 0) | (expert >= NUM_EXPERTS), 0, count)
    return expert, rank_P, count


@triton.jit
def sorted_block_of_slot(
    starts_ptr, slot, NUM_EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr
):
    """(a slot's expert, its first place in the order, the one past its last); slots past the last block have none."""
    experts_E = tl.arange(0, EXPERTS_BLOCK)
    here_E = experts_E < NUM_EXPERTS
    starts_E = tl.load(starts_ptr + experts_E, mask=here_E, other=0)
    ends_E = tl.load(starts_ptr + experts_E + 1, mask=here_E, other=0)
    blocks_E = (ends_E - starts_E + BLOCK_M - 1) // BLOCK_M
    total_E = tl.cumsum(blocks_E, axis=0)
    expert = tl.minimum(tl.sum((total_E <= slot).to(tl.int32), axis=0), NUM_EXPERTS - 1)
    block = slot - tl.sum(tl.where(experts_E < expert, blocks_E, 0), axis=0)
    first = tl.load(starts_ptr + expert) + block * BLOCK_M
    end = tl.load(starts_ptr + expert + 1)
    return expert, first, tl.minimum(first + BLOCK_M, end)
