"""The requests of a step as numbers, and what they see: by these mixers say how much they must do."""

from __future__ import annotations

from collections.abc import Sequence

# (queries, tokens in all) of each request.
Requests = Sequence[tuple[int, int]]


def num_rows(requests: Requests) -> int:
    """Queries of all requests."""
    return sum(queries for queries, _ in requests)


def num_keys(requests: Requests, window: int | None = None) -> int:
    """Keys that some query of its own request sees; a query sees the last `window`, its own included."""
    if window is None:
        return sum(length for _, length in requests)
    return sum(min(length, queries + window - 1) for queries, length in requests)


def num_pairs(requests: Requests, window: int | None = None) -> int:
    """Pairs of a query and a key that it sees."""
    return sum(_seen(length, window) - _seen(length - queries, window) for queries, length in requests)


def _seen(num_tokens: int, window: int | None) -> int:
    """Keys that so many first queries see together."""
    near = num_tokens if window is None else min(num_tokens, window)
    return near * (near + 1) // 2 + (num_tokens - near) * (window or 0)
