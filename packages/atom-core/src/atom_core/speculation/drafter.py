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
    """What follows one request."""

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """Guess what comes after `token_ids`, up to `num_tokens` tokens.

        Args:
            token_ids: prompt and output so far. Each call has those of the call before, and perhaps more behind them.
            num_tokens: 1 or more.
        """
        ...


class Drafters(Protocol):
    """Gives requests their drafters, and may learn from those that ended.

    Requests that have different salts must not be able to learn from times what the others have: a drafter sees its own
    request, and what ended under the same salt.

    Attributes:
        num_kept_tokens: tokens that are kept of requests that ended.
    """

    @property
    def num_kept_tokens(self) -> int: ...

    def start(self, salt: str) -> Drafter:
        """The drafter of a new request."""
        ...

    def take_output(self, salt: str, token_ids: Sequence[int]) -> None:
        """A request ended, with this output."""
        ...

    def forget(self) -> None:
        """Keep nothing of what was learned so far."""
        ...


class EachByItself:
    """`Drafters` that learn nothing: each sees its own request alone.

    Args:
        make_drafter: gives a new request its drafter.
    """

    num_kept_tokens = 0

    def __init__(self, make_drafter: Callable[[], Drafter]) -> None:
        self._make_drafter = make_drafter

    def start(self, salt: str) -> Drafter:
        """See `Drafters`."""
        return self._make_drafter()

    def take_output(self, salt: str, token_ids: Sequence[int]) -> None:
        """See `Drafters`."""

    def forget(self) -> None:
        """See `Drafters`."""
