"""`Drafter`: guesses the next tokens of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Drafter(Protocol):
    """What follows one request. It sees no other request, so nothing of a tenant reaches another."""

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """The tokens that may come next: at most `num_tokens`, none where there is nothing to go by.

        Args:
            token_ids: prompt and output so far. Each call has those of the call before, and more behind them.
            num_tokens: 1 or more.
        """
        ...


MakeDrafter = Callable[[], Drafter]
"""Gives a new request its drafter."""
