"""`Draft`: guesses of the next tokens of one request, and `Drafter`: what makes them beside the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Draft(NamedTuple):
    """Tokens that may come next.

    Attributes:
        token_ids: in order; empty where there is nothing to go by.
        level: how much the drafter had to go by. How often it is right is measured for each level by itself.
    """

    token_ids: Sequence[int]
    level: int = 0


NO_DRAFT = Draft(())


class Drafter(Protocol):
    """What follows one request. It sees no other request, so nothing of a tenant reaches another."""

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """Guess what comes after `token_ids`, up to `num_tokens` tokens.

        Args:
            token_ids: prompt and output so far. Each call has those of the call before, and perhaps more behind them.
            num_tokens: 1 or more.
        """
        ...


MakeDrafter = Callable[[], Drafter]
"""Gives a new request its drafter."""
