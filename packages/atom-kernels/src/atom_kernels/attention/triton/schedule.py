"""How the keys of a step's decodes are shared out among programs in Triton, from lengths that only the device knows.

A request's keys are tiles of N. The tiles of all requests, one behind the other, are cut into ranges of equal length:
one for each program of a key head, whatever the requests are. Where every request can begin a range of its own and no
range gets longer, it does: a program then has one piece, and there are fewer to merge.

What a range holds of one request is a piece of it; where a request has several pieces, the last program to finish one
merges them. Every request has at least one tile.

Layers read all this before they wait for the kernel in front of them, so no kernel may start before these have ended:
see `atom_kernels.triton.support`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.tile import visible_keys

# int32 fields of a range: its first request, the first key of that which it holds, and its number of tiles.
RANGE_FIELDS = tl.constexpr(3)
# int32 fields of a request: the first range that holds a piece of it, and the last.
REQUEST_FIELDS = tl.constexpr(2)


@triton.jit
def _load_tiles(
    query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Where the first tile of each request begins, and its number of tiles; none past the last request."""
    inside = requests < num_requests
    start = tl.load(query_start_loc_ptr + requests, mask=inside, other=0)
    stop = tl.load(query_start_loc_ptr + requests + 1, mask=inside, other=0)
    length = tl.load(seq_lens_ptr + requests, mask=inside, other=0)
    _, first_key = visible_keys(stop - start, length, WINDOW, BLOCK_N)
    return first_key, tl.where(inside, tl.maximum(tl.cdiv(length - first_key, BLOCK_N), 1), 0)


@triton.jit
def _range_of(tile, narrow, num_wide):
    """The range that holds a tile, where the first `num_wide` ranges have ``narrow + 1`` tiles and others `narrow`."""
    in_wide = num_wide * (narrow + 1)
    behind = num_wide + (tile - in_wide) // tl.maximum(narrow, 1)
    return tl.where(tile < in_wide, tile // (narrow + 1), behind)


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_requests", "num_ranges"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"],
)
def share_evenly(
    query_start_loc_ptr, seq_lens_ptr, ranges_ptr, requests_ptr, arrivals_ptr, num_requests, num_ranges,
    NUM_KV_HEADS: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One program `BLOCK_J` ranges; the first one describes the requests too, and counts no arrivals yet."""
    ranges = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    all_tiles, needed = 0, 0
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        _, tiles = _load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW, BLOCK_N)
        all_tiles += tl.sum(tiles)
    longest = tl.cdiv(all_tiles, num_ranges)
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        _, tiles = _load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW, BLOCK_N)
        needed += tl.sum(tl.cdiv(tiles, longest))
    aligned = needed <= num_ranges
    narrow = tl.where(aligned, longest, all_tiles // num_ranges)
    num_wide = tl.where(aligned, 0, all_tiles % num_ranges)
    unit = tl.where(aligned, longest, 1)
    begin = ranges * narrow + tl.minimum(ranges, num_wide)
    first_request = tl.zeros([BLOCK_J], tl.int32)
    first_key = tl.zeros([BLOCK_J], tl.int32)
    left = tl.zeros([BLOCK_J], tl.int32)
    before = 0
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        inside = requests < num_requests
        first, present = _load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW, BLOCK_N)
        # As if each request filled its last range.
        tiles = tl.cdiv(present, unit) * unit
        stop = before + tl.cumsum(tiles)
        over = (stop[None, :] <= begin[:, None]) & inside[None, :]
        first_request += tl.sum(over.to(tl.int32), axis=1)
        here = ((stop - tiles)[None, :] <= begin[:, None]) & (stop[None, :] > begin[:, None])
        key = first[None, :] + (begin[:, None] - (stop - tiles)[None, :]) * BLOCK_N
        first_key += tl.sum(tl.where(here, key, 0), axis=1)
        left += tl.sum(tl.where(here, (stop - tiles + present)[None, :] - begin[:, None], 0), axis=1)
        if tl.program_id(0) == 0:
            row = requests_ptr + requests * REQUEST_FIELDS
            tl.store(row, _range_of(stop - tiles, narrow, num_wide), mask=inside)
            tl.store(row + 1, _range_of(stop - 1, narrow, num_wide), mask=inside)
            for head in range(NUM_KV_HEADS):
                tl.store(arrivals_ptr + requests * NUM_KV_HEADS + head, 0, mask=inside)
        before += tl.sum(tiles)
    row = ranges_ptr + ranges * RANGE_FIELDS
    tl.store(row, first_request, mask=ranges < num_ranges)
    tl.store(row + 1, first_key, mask=ranges < num_ranges)
    length = narrow + (ranges < num_wide).to(tl.int32)
    tl.store(row + 2, tl.where(aligned, tl.minimum(length, left), length), mask=ranges < num_ranges)


@triton.jit(do_not_specialize=["num_requests"], do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"])
def share_apart(
    query_start_loc_ptr, seq_lens_ptr, ranges_ptr, requests_ptr, arrivals_ptr, num_requests,
    NUM_KV_HEADS: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, RANGES: tl.constexpr,
):  # fmt: skip
    """One program a request, cut into up to RANGES ranges of its own: neighbors do not change the order of its sums.

    A range is four tiles or more, unless a request is shorter.
    """
    request = tl.program_id(0)
    first_key, tiles = _load_tiles(query_start_loc_ptr, seq_lens_ptr, request, num_requests, WINDOW, BLOCK_N)
    width = tl.maximum(tl.cdiv(tiles, RANGES), 4)
    ranges = tl.arange(0, RANGES)
    row = ranges_ptr + (request * RANGES + ranges) * RANGE_FIELDS
    tl.store(row, request + tl.zeros([RANGES], tl.int32))
    tl.store(row + 1, first_key + ranges * width * BLOCK_N)
    tl.store(row + 2, tl.maximum(tl.minimum(tiles - ranges * width, width), 0))
    row = requests_ptr + request * REQUEST_FIELDS
    tl.store(row, request * RANGES)
    tl.store(row + 1, request * RANGES + tl.cdiv(tiles, width) - 1)
    for head in range(NUM_KV_HEADS):
        tl.store(arrivals_ptr + request * NUM_KV_HEADS + head, 0)
