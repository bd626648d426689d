"""What sliding windows leave of a request: which blocks a group of layers still reads, and how many at most."""

from __future__ import annotations

from collections.abc import Sequence

# The window of a group in tokens, a query's own included; None for layers that see everything.
Window = int | None


def first_visible_block(num_tokens: int, window: int, block_size: int) -> int:
    """Index of the first block that the query after `num_tokens` tokens sees; those before it are behind the window."""
    return max(num_tokens - window + 1, 0) // block_size


def max_blocks(window: Window, num_tokens: int, block_size: int, step_tokens: int) -> int:
    """Most blocks that a group holds at once for a request of `num_tokens` tokens that runs by itself.

    That is all of them, or what the window reaches back from the beginning of a block and what one step of at most
    `step_tokens` tokens adds.
    """
    whole = -(-num_tokens // block_size)
    if window is None:
        return whole
    return min(whole, -(-(window - 1) // block_size) + -(-(step_tokens + block_size - 1) // block_size))


def blocks_of_request(windows: Sequence[Window], num_tokens: int, block_size: int, step_tokens: int) -> int:
    """Most blocks that a request of `num_tokens` tokens holds at once over all groups, when it runs by itself."""
    return sum(max_blocks(window, num_tokens, block_size, step_tokens) for window in windows)


def longest_request(
    windows: Sequence[Window], num_blocks: int, block_size: int, *, step_tokens: int, limit: int
) -> int:
    """Tokens of the longest request, up to `limit`, that `num_blocks` blocks can hold; 0 if none."""
    fits, too_long = 0, limit + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if blocks_of_request(windows, middle, block_size, step_tokens) <= num_blocks:
            fits = middle
        else:
            too_long = middle
    return fits
