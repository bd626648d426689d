"""`Following`: whether a model that drafts follows the steps, which takes time also where it makes no drafts."""

from __future__ import annotations

from collections.abc import Iterable

from atom_core.speculation.trail import Trail

# Steps that are followed though no drafts pay, at most: within them what was measured in a bad moment is forgotten (see
# `StepCosts`) and measured again. How many more of them each step that pays is worth, and how many there are behind a
# trial that went well.
_MOST_IDLE, _EARNED, _AFTER_TRIAL = 600, 8, 64
# While it is off: steps from the beginning of a trial to that of the next, and steps of a trial behind its prompt.
_STEPS_BETWEEN_TRIALS, _STEPS_OF_TRIAL = 1024, 32


class Following:
    """On while drafts pay, or would pay again soon; off where they have not for long.

    A request that a step computes a token of while the model does not follow has a gap from there on, and no drafts any
    more. So on or off is decided by what drafts would give if all who decode had them: those who have a gap end, and
    others come. While it is off, one new request in so many steps is followed from its beginning, with all that is
    computed beside it, to see whether drafts would pay by now.

    Attributes:
        is_on: steps are followed for everybody who has no gap.
        tried: the trail of the request that is followed while it is off; None without.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.tried: Trail | None = None
        self._steps_left = _MOST_IDLE
        self._steps_to_trial = 0

    @property
    def is_trial_due(self) -> bool:
        """Whether the next request that begins should be tried."""
        return not self.is_on and self._steps_to_trial <= 0

    def is_for(self, trail: Trail | None) -> bool:
        """Whether steps are to be followed for a request without a gap."""
        return self.is_on or (trail is not None and trail is self.tried)

    def try_with(self, trail: Trail) -> None:
        """A request begins that is followed from its first token on."""
        self.tried = trail
        self._steps_left, self._steps_to_trial = _STEPS_OF_TRIAL, _STEPS_BETWEEN_TRIALS

    def take_step(self, decoding: Iterable[Trail | None], *, is_followed: bool) -> None:
        """A step is scheduled that samples for the requests of these trails."""
        if self.is_on:
            self._steps_left -= is_followed
            if self._steps_left <= 0:
                self.is_on, self._steps_to_trial = False, _STEPS_BETWEEN_TRIALS
            return
        self._steps_to_trial -= 1
        if self.tried is not None and any(trail is self.tried for trail in decoding):
            self._steps_left -= 1
            if self._steps_left <= 0:
                self.tried = None

    def pay(self) -> None:
        """Drafts would pay behind the step that is scheduled, if all who decode had them."""
        if self.is_on:
            self._steps_left = min(self._steps_left + _EARNED, _MOST_IDLE)
        else:
            self.is_on, self.tried, self._steps_left = True, None, _AFTER_TRIAL
