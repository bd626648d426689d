"""How decodes are shared out: every tile once, no range longer than it must be, few pieces where that is free."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch

from atom_kernels.attention.triton.schedule import share_apart, share_evenly
from atom_kernels.platform import detect_platform

DEVICE = detect_platform().device
BLOCK_N = 16


def share(lengths, num_ranges, *, window=0):
    """Ranges ``(request, first key, tiles)`` and requests ``(first range, last range)``, as lists."""
    lengths_here = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=DEVICE)
    ranges = torch.full((num_ranges, 3), -1, dtype=torch.int32, device=DEVICE)
    requests = torch.full((len(lengths), 2), -1, dtype=torch.int32, device=DEVICE)
    arrivals = torch.full((len(lengths), 2), -1, dtype=torch.int32, device=DEVICE)
    rules: dict[str, Any] = {"NUM_KV_HEADS": 2, "WINDOW": window, "BLOCK_N": BLOCK_N, "BLOCK_J": 32, "BLOCK_R": 16}
    given = (starts, lengths_here, ranges, requests, arrivals, len(lengths), num_ranges)
    share_evenly[(-(-num_ranges // 32),)](*given, **rules)
    assert not arrivals.any()
    return ranges.tolist(), requests.tolist()


def pieces_of(ranges, lengths, window=0):
    """``(range, request, first tile, last tile)`` of every piece, as the kernel that takes the ranges walks them."""
    found = []
    for index, (request, key, left) in enumerate(ranges):
        while left > 0:
            tiles = min(max(-(-(lengths[request] - key) // BLOCK_N), 1), left)
            found.append((index, request, key // BLOCK_N, key // BLOCK_N + tiles - 1))
            left, request = left - tiles, request + 1
            if left > 0:
                key = first_tile(lengths[request], window) * BLOCK_N
    return found


def first_tile(length, window):
    return max(length - window, 0) // BLOCK_N if window else 0


def tiles_of(length, window=0):
    return max(-(-length // BLOCK_N) - first_tile(length, window), 1)


@pytest.mark.parametrize("seed", range(12))
def test_every_tile_is_in_one_range_and_no_range_is_longer_than_it_must_be(seed):
    choose = random.Random(seed)
    window = choose.choice((0, 0, 50))
    num_ranges = choose.choice((1, 3, 12, 40))
    lengths = [choose.randint(0, 700) for _ in range(choose.choice((1, 2, 5, 33)))]
    if choose.random() < 0.5:
        lengths = lengths[:1] * len(lengths)
    ranges, requests = share(lengths, num_ranges, window=window)
    pieces = pieces_of(ranges, lengths, window)
    for request, length in enumerate(lengths):
        mine = [piece for piece in pieces if piece[1] == request]
        tiles = [tile for _, _, first, last in mine for tile in range(first, last + 1)]
        begin = first_tile(length, window)
        assert tiles == list(range(begin, begin + tiles_of(length, window)))
        assert [piece[0] for piece in mine] == list(range(requests[request][0], requests[request][1] + 1))
    work = sum(tiles_of(length, window) for length in lengths)
    assert max(tiles for _, _, tiles in ranges) == -(-work // num_ranges)


def test_requests_begin_ranges_of_their_own_where_no_range_gets_longer():
    lengths = [1024] * 4
    ranges, requests = share(lengths, 33)
    assert requests == [[0, 7], [8, 15], [16, 23], [24, 31]]
    assert [tiles for _, _, tiles in ranges] == [8] * 32 + [0]
    # The last range of a request may be short.
    assert [tiles for _, _, tiles in share([40, 40], 4)[0]] == [2, 1, 2, 1]


def test_requests_that_are_more_than_ranges_share_them():
    ranges, _ = share([160] * 5, 4)
    assert [tiles for _, _, tiles in ranges] == [13, 13, 12, 12]


@pytest.mark.parametrize("kernel", [share_evenly, share_apart])
def test_no_layer_starts_before_it_is_settled_who_reads_what(kernel):
    """Layers read it without waiting: `atom_kernels.triton.support` says why they may."""
    assert "DEPENDENT" not in inspect.signature(kernel.fn).parameters
