"""`RateLimits`: requests and tokens a minute, of each key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from atom_server.access.keys import Caller
from atom_server.errors import APIError


class Allowance:
    """Fills up evenly to what a minute allows. It may be overdrawn: some costs are known only afterwards."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._when = clock()

    def seconds_until(self, amount: float) -> float:
        """Seconds until `amount` can be spent; for more than a minute allows, until the allowance is full."""
        self._fill()
        lacking = min(amount, self.per_minute) - self._left
        return max(0.0, lacking * 60 / self.per_minute)

    def spend(self, amount: float) -> None:
        """Take `amount`, even if less is left."""
        self._fill()
        self._left -= amount

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self.per_minute), self._left + (now - self._when) * self.per_minute / 60)
        self._when = now


class RateLimits:
    """The allowances of all keys.

    Args:
        requests, tokens: how many a minute allows; 0 sets no limit. Tokens of prompts and output count, cached or not.
    """

    def __init__(self, requests: int = 0, tokens: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = {"requests": requests, "tokens": tokens}
        self._clock = clock
        self._allowances: dict[tuple[str, str], Allowance] = {}

    def take_request(self, caller: Caller) -> None:
        """Count a request, before anything is read of it.

        Raises:
            APIError: 429; this key has used up its requests or its tokens.
        """
        # At least one token must be left: the cost of the output is known only afterwards.
        self._check(caller, "tokens", 1)
        self._check(caller, "requests", 1)
        self._spend(caller, "requests", 1)

    def take_prompt(self, caller: Caller, num_tokens: int) -> None:
        """Count the tokens of prompts, before they are computed.

        Raises:
            APIError: 429; this key has fewer tokens left.
        """
        self._check(caller, "tokens", num_tokens)
        self._spend(caller, "tokens", num_tokens)

    def take_output(self, caller: Caller, num_tokens: int) -> None:
        """Count tokens that were generated."""
        self._spend(caller, "tokens", num_tokens)

    def _check(self, caller: Caller, what: str, amount: int) -> None:
        if (allowance := self._allowance(caller, what)) is None:
            return
        seconds = allowance.seconds_until(amount)
        if seconds > 0:
            message = f"this key may use {allowance.per_minute} {what} a minute: try again in {math.ceil(seconds)} s"
            headers = {"retry-after": str(math.ceil(seconds))}
            raise APIError(429, message, code="rate_limit_exceeded", headers=headers)

    def _spend(self, caller: Caller, what: str, amount: int) -> None:
        if (allowance := self._allowance(caller, what)) is not None:
            allowance.spend(amount)

    def _allowance(self, caller: Caller, what: str) -> Allowance | None:
        limit = self._limits[what]
        if not limit:
            return None
        key = (caller.name, what)
        if key not in self._allowances:
            self._allowances[key] = Allowance(limit, self._clock)
        return self._allowances[key]
