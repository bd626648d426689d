"""`StepSizes`: how many steps there were of which size, in tokens."""

from __future__ import annotations

from bisect import bisect_left

from atom_core.messages import STEP_SIZES


class StepSizes:
    """Counts steps by the tokens that they compute, drafts among them.

    Attributes:
        num_tokens: what all steps computed.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(STEP_SIZES) + 1)
        self.num_tokens = 0

    def take(self, num_tokens: int) -> None:
        """Count a step; one without a token only moves blocks, and is none."""
        if num_tokens:
            self._counts[bisect_left(STEP_SIZES, num_tokens)] += 1
            self.num_tokens += num_tokens

    @property
    def counts(self) -> tuple[int, ...]:
        """Steps of at most each of `STEP_SIZES`, and not of the one before; those of more come last."""
        return tuple(self._counts)
