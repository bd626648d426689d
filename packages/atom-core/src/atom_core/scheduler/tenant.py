"""`Tenant`: on whose behalf requests are made, and what has been computed for it."""

from __future__ import annotations

from dataclasses import dataclass

# An output token takes a step of its own; prompt tokens share one.
OUTPUT_COST = 2


@dataclass(slots=True, eq=False)
class Tenant:
    """One of those who share the engine.

    Attributes:
        name: "" is everybody who gave none.
        served: tokens computed for it, output tokens `OUTPUT_COST` times, since all tenants' common beginning.
        num_requests: requests that have not ended.
    """

    name: str
    served: float = 0.0
    num_requests: int = 0

    def pay_prompt(self, num_tokens: int) -> None:
        """Prompt tokens are going to be computed."""
        self.served += num_tokens

    def pay_output(self, num_tokens: int) -> None:
        """Output tokens have come."""
        self.served += OUTPUT_COST * num_tokens
