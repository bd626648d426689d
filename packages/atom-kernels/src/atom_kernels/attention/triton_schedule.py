"""How the keys of a step's decodes are shared out among programs in Triton, from lengths that only the device knows.

A request's keys are tiles of N. The tiles of all requests, one behind the other, are cut into ranges of equal length:
one for each program of a key head, whatever the requests are. What a range holds of one request is a piece of it;
where a request has several pieces, the last program to finish one merges them. Every request has at least one tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton_tile import visible_keys

# int32 fields of a range: the request of its first tile, that tile, and one past its last.
RANGE_FIELDS = tl.constexpr(3)
# int32 fields of a request: its first tile, the first range that holds a piece of it, and the last.
REQUEST_FIELDS = tl.constexpr(3)


@triton.jit
def count_tiles(queries, length, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tiles of keys that the last `queries` tokens of a request see, at least one."""
    _, begin = visible_keys(queries, length, WINDOW, BLOCK_N)
    return tl.maximum(tl.cdiv(length - begin, BLOCK_N), 1)


@triton.jit
def _load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    inside = requests < num_requests
    start = tl.load(query_start_loc_ptr + requests, mask=inside, other=0)
    stop = tl.load(query_start_loc_ptr + requests + 1, mask=inside, other=0)
    length = tl.load(seq_lens_ptr + requests, mask=inside, other=0)
    return tl.where(inside, count_tiles(stop - start, length, WINDOW, BLOCK_N), 0)


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
    all_tiles = 0
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        all_tiles += tl.sum(_load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW, BLOCK_N))
    narrow, num_wide = all_tiles // num_ranges, all_tiles % num_ranges
    begin = ranges * narrow + tl.minimum(ranges, num_wide)
    end = begin + narrow + (ranges < num_wide).to(tl.int32)
    first_request = tl.zeros([BLOCK_J], tl.int32)
    before = 0
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        inside = requests < num_requests
        tiles = _load_tiles(query_start_loc_ptr, seq_lens_ptr, requests, num_requests, WINDOW, BLOCK_N)
        stop = before + tl.cumsum(tiles)
        over = (stop[None, :] <= begin[:, None]) & inside[None, :]
        first_request += tl.sum(over.to(tl.int32), axis=1)
        if tl.program_id(0) == 0:
            row = requests_ptr + requests * REQUEST_FIELDS
            tl.store(row, stop - tiles, mask=inside)
            tl.store(row + 1, _range_of(stop - tiles, narrow, num_wide), mask=inside)
            tl.store(row + 2, _range_of(stop - 1, narrow, num_wide), mask=inside)
            for head in range(NUM_KV_HEADS):
                tl.store(arrivals_ptr + requests * NUM_KV_HEADS + head, 0, mask=inside)
        before += tl.sum(tiles)
    row = ranges_ptr + ranges * RANGE_FIELDS
    tl.store(row, first_request, mask=ranges < num_ranges)
    tl.store(row + 1, begin, mask=ranges < num_ranges)
    tl.store(row + 2, end, mask=ranges < num_ranges)


@triton.jit(do_not_specialize=["num_requests"], do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"])
def share_apart(
    query_start_loc_ptr, seq_lens_ptr, ranges_ptr, requests_ptr, arrivals_ptr, num_requests,
    NUM_KV_HEADS: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, RANGES: tl.constexpr,
):  # fmt: skip
    """One program a request, cut into up to RANGES ranges of its own: neighbors do not change the order of its sums.

    A range is four tiles or more, unless a request is shorter.
    """
    request = tl.program_id(0)
    tiles = _load_tiles(query_start_loc_ptr, seq_lens_ptr, request, num_requests, WINDOW, BLOCK_N)
    width = tl.maximum(tl.cdiv(tiles, RANGES), 4)
    ranges = tl.arange(0, RANGES)
    row = ranges_ptr + (request * RANGES + ranges) * RANGE_FIELDS
    tl.store(row, request + tl.zeros([RANGES], tl.int32))
    tl.store(row + 1, tl.minimum(ranges * width, tiles))
    tl.store(row + 2, tl.minimum((ranges + 1) * width, tiles))
    row = requests_ptr + request * REQUEST_FIELDS
    tl.store(row, 0)
    tl.store(row + 1, request * RANGES)
    tl.store(row + 2, request * RANGES + tl.cdiv(tiles, width) - 1)
    for head in range(NUM_KV_HEADS):
        tl.store(arrivals_ptr + request * NUM_KV_HEADS + head, 0)
