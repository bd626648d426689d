"""`Trail`: what was guessed of one request, and how often that has been right."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.speculation.drafter import NO_DRAFT, Draft, Drafter

# Right ones and all before anything is known: drafts are taken to be right as often as not.
_AT_FIRST = (1.0, 2.0)
# What each further one leaves of the weight of those before it: the last 16 or so count.
_KEPT = 0.94


class Trail:
    """Has the draft that follows a request's tokens: a drafter is asked for it, or a step brings it.

    Each is compared with the tokens that came, whether or not they were computed as drafts. So it is known whether
    drafts would be right, also while none are verified.

    Args:
        drafter: is asked; None where steps bring drafts.
    """

    def __init__(self, drafter: Drafter | None = None) -> None:
        self._drafter = drafter
        self._draft, self._num_known = NO_DRAFT, 0
        # By level, of the drafts that came right after tokens that were right: how many were right, and how many.
        self._counts: dict[int, tuple[float, float]] = {}

    def look(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """The draft after `token_ids`, which are all that are known (see `Drafter`); up to `num_tokens` tokens."""
        self._judge(token_ids)
        if self._drafter is not None:
            self._draft, self._num_known = self._drafter.propose(token_ids, num_tokens), len(token_ids)
        return Draft(self._draft.token_ids[:num_tokens], self._draft.level)

    def take(self, draft: Draft, token_ids: Sequence[int], num_known: int) -> None:
        """A step brought the draft that follows the first `num_known` of `token_ids`."""
        self._judge(token_ids)
        self._draft, self._num_known = draft, num_known
        self._judge(token_ids)

    def chance(self, level: int) -> float:
        """How likely a draft of this level is right if those before it are."""
        right, seen = self._counts.get(level, _AT_FIRST)
        return right / seen

    def _judge(self, token_ids: Sequence[int]) -> None:
        """Compare the last draft with what came after it was made, once: then it is past."""
        if not self._draft.token_ids or len(token_ids) == self._num_known:
            return
        right, seen = self._counts.get(self._draft.level, _AT_FIRST)
        came = token_ids[self._num_known : self._num_known + len(self._draft.token_ids)]
        for draft, token_id in zip(self._draft.token_ids, came, strict=False):
            is_right = draft == token_id
            right, seen = right * _KEPT + is_right, seen * _KEPT + 1
            if not is_right:
                break
        self._counts[self._draft.level] = (right, seen)
        self._draft = NO_DRAFT
