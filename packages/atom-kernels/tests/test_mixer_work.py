"""How much a mixer must do in a step, counted over what each request sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atom_kernels.attention import AttentionProblem
from atom_kernels.mixers import CacheFormat
from atom_kernels.mixers.requests import num_keys, num_pairs, num_rows

REQUESTS = [(1, 1), (1, 9), (4, 4), (3, 10), (6, 7)]


@pytest.mark.parametrize("window", [None, 1, 3, 4, 20])
def test_pairs_are_those_that_a_mask_leaves(window: int | None):
    seen = {
        (request, query, key)
        for request, (queries, length) in enumerate(REQUESTS)
        for query in range(length - queries, length)
        for key in range(length)
        if key <= query and (window is None or query - key < window)
    }
    assert num_pairs(REQUESTS, window) == len(seen)
    assert num_keys(REQUESTS, window) == len({(request, key) for request, _, key in seen})
    assert num_rows(REQUESTS) == len({(request, query) for request, query, _ in seen})


def test_a_window_and_a_cache_in_float8_leave_less_to_read():
    whole = AttentionProblem(4, 2, 64, 0.125, "bfloat16", CacheFormat("bfloat16"), 16)
    requests = [(1, 1000)]
    keys_and_values = 2 * 1000 * 2 * 64
    assert whole.work(requests).num_bytes == 2 * keys_and_values + 2 * 2 * 4 * 64
    for less, factor in (
        (replace(whole, sliding_window=100), 10),
        (replace(whole, cache=CacheFormat("float8_e4m3fn")), 2),
    ):
        assert less.work(requests).num_bytes == 2 * keys_and_values // factor + 2 * 2 * 4 * 64
