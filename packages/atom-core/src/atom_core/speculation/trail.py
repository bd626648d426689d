"""`Trail`: what was guessed of one request, and how often that has been right."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.speculation.drafter import NO_DRAFT, Draft, Drafter

# Right ones and all before anything is known: drafts are taken to be right as often as not.
_AT_FIRST = (1.0, 2.0)
# What each further one leaves of the weight of those before it: the last 16 or so count.
_KEPT = 0.94
# The same for all requests together, where they begin (a model is worth trying), and what a request takes over of it.
_KEPT_BY_ALL, _ALL_AT_FIRST, _TAKEN_OVER = 0.995, (3.0, 4.0), 4.0


class Experience:
    """How often the drafts of all requests have been right lately: what is to be expected of a request that is new.

    Without it a request whose first draft is wrong would seem hopeless.
    """

    def __init__(self) -> None:
        self._right, self._seen = _ALL_AT_FIRST

    def take(self, is_right: bool) -> None:
        """A draft was compared with the token that came."""
        self._right, self._seen = self._right * _KEPT_BY_ALL + is_right, self._seen * _KEPT_BY_ALL + 1

    def begin(self) -> tuple[float, float]:
        """Right drafts and all that a request begins with."""
        return _TAKEN_OVER * self._right / self._seen, _TAKEN_OVER


class Trail:
    """Has the draft that follows a request's tokens: a drafter is asked for it, or a step brings it.

    Each is compared with the tokens that came, whether or not they were computed as drafts. So it is known whether
    drafts would be right, also while none are verified.

    Args:
        drafter: is asked; None where steps bring drafts.
        experience: what all requests have found, and this one adds to; None where each begins anew.
    """

    def __init__(self, drafter: Drafter | None = None, experience: Experience | None = None) -> None:
        self._drafter, self._experience = drafter, experience
        self._draft, self._num_known = NO_DRAFT, 0
        # By level, of the drafts that came right after tokens that were right: how many were right, and how many.
        self._counts: dict[int, tuple[float, float]] = {}

    def look(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """The draft after `token_ids`, which are all that are known (see `Drafter`); up to `num_tokens` tokens."""
        self._judge(token_ids)
        if self._drafter is not None:
            self._draft, self._num_known = self._drafter.propose(token_ids, num_tokens), len(token_ids)
        return Draft(self._draft.token_ids[:num_tokens], self._draft.level)

    def take(self, draft: Draft, token_ids: Sequence[int]) -> None:
        """A step brought the draft that follows `token_ids`."""
        self._judge(token_ids)
        self._draft, self._num_known = draft, len(token_ids)

    def chance(self, level: int) -> float:
        """How likely a draft of this level is right if those before it are."""
        right, seen = self._count(level)
        return right / seen

    def _count(self, level: int) -> tuple[float, float]:
        if (count := self._counts.get(level)) is not None:
            return count
        return _AT_FIRST if self._experience is None else self._experience.begin()

    def _judge(self, token_ids: Sequence[int]) -> None:
        """Compare the last draft with what came after it was made, once: then it is past."""
        if not self._draft.token_ids or len(token_ids) == self._num_known:
            return
        right, seen = self._count(self._draft.level)
        came = token_ids[self._num_known : self._num_known + len(self._draft.token_ids)]
        for draft, token_id in zip(self._draft.token_ids, came, strict=False):
            is_right = draft == token_id
            right, seen = right * _KEPT + is_right, seen * _KEPT + 1
            if self._experience is not None:
                self._experience.take(is_right)
            if not is_right:
                break
        self._counts[self._draft.level] = (right, seen)
        self._draft = NO_DRAFT
