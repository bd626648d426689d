"""`GroupSpec`: what a layer keeps of a request, as whoever gives out, counts or plans its memory must know it.

Layers of equal specs are one group: their memory is given and taken together. Torch-free; it counts in blocks, whose
bytes are a matter of layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GroupSpec(Protocol):
    """One kind of state. Frozen and hashable."""

    @property
    def in_slots(self) -> bool:
        """A request holds slots of fixed size instead of blocks; all counts of blocks are 0 then."""
        ...

    @property
    def slots_each(self) -> int:
        """Slots that a request holds; 0 where it holds blocks."""
        ...

    @property
    def hand_over(self) -> int:
        """A step that ends before its request's tokens do should end at a multiple of so many of them."""
        ...

    @property
    def keeps_all(self) -> bool:
        """All blocks of a request stay until it ends, and each of them is needed to go on."""
        ...

    def within(self, max_model_len: int) -> GroupSpec:
        """What it comes to where no request is longer than that."""
        ...

    def first_needed(self, num_tokens: int, block_size: int) -> int:
        """Index of the first block that the query after `num_tokens` tokens needs; the blocks before it may go."""
        ...

    def num_at_first(self, num_tokens: int, num_found: int, block_size: int, step_tokens: int) -> int:
        """Blocks, counted from the beginning of a request of `num_tokens` tokens, that it gets when it is admitted.

        The first `num_found` tokens are cached, and a step computes at most `step_tokens`.
        """
        ...

    def most_blocks(self, num_tokens: int, block_size: int, step_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` tokens holds at once when it runs by itself."""
        ...

    def tokens_kept(self, num_tokens: int, block_size: int) -> int:
        """Tokens of a request of `num_tokens` that take up memory, between its steps."""
        ...

    def describe(self) -> str | None:
        """What its layers keep, after "layers keep", for people; None where that is what one expects."""
        ...


def blocks_of_request(groups: Sequence[GroupSpec], num_tokens: int, block_size: int, step_tokens: int) -> int:
    """Most blocks that a request of `num_tokens` tokens holds at once over all groups, when it runs by itself."""
    return sum(group.most_blocks(num_tokens, block_size, step_tokens) for group in groups)


def longest_request(
    groups: Sequence[GroupSpec], num_blocks: int, block_size: int, *, step_tokens: int, limit: int
) -> int:
    """Tokens of the longest request, up to `limit`, that `num_blocks` blocks can hold; 0 if none."""
    fits, too_long = 0, limit + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if blocks_of_request(groups, middle, block_size, step_tokens) <= num_blocks:
            fits = middle
        else:
            too_long = middle
    return fits
