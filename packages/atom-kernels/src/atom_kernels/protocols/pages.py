"""`Pages`: a layer keeps something of each token, in blocks of tokens; of all tokens, or of those in a window."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pages:
    """The `GroupSpec` of attention.

    Attributes:
        window: tokens that a query sees, itself included; None sees everything.

    Raises:
        ValueError: a window below 1.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"the window of pages is {self.window}; it must be at least 1, or None to see everything")

    @property
    def in_slots(self) -> bool:
        return False

    @property
    def slots_each(self) -> int:
        return 0

    @property
    def hand_over(self) -> int:
        return 1

    @property
    def keeps_all(self) -> bool:
        return self.window is None

    def within(self, max_model_len: int) -> Pages:
        return self if self.window is None or self.window < max_model_len else Pages()

    def first_needed(self, num_tokens: int, block_size: int) -> int:
        """Index of the first block with a token that the query after `num_tokens` tokens sees."""
        return 0 if self.window is None else max(num_tokens - self.window + 1, 0) // block_size

    def num_at_first(self, num_tokens: int, num_found: int, block_size: int, step_tokens: int) -> int:
        """Blocks of all tokens, or of what the window and a first step need."""
        if self.window is not None:
            # No more than `most_blocks` counts: the window reaches back into found blocks, or begins with the text.
            num_tokens = min(max(num_found, self.window - 1) + step_tokens, num_tokens)
        return -(-num_tokens // block_size)

    def most_blocks(self, num_tokens: int, block_size: int, step_tokens: int) -> int:
        """All of them, or what the window reaches back from the beginning of a block and what one step adds."""
        whole = -(-num_tokens // block_size)
        if self.window is None:
            return whole
        return min(whole, -(-(self.window - 1) // block_size) + -(-(step_tokens + block_size - 1) // block_size))

    def tokens_kept(self, num_tokens: int, block_size: int) -> int:
        """All of them, or a window and a block that the request has begun."""
        return num_tokens if self.window is None else min(num_tokens, self.window + block_size)

    def describe(self) -> str | None:
        return None if self.window is None else f"the last {self.window} tokens only"
