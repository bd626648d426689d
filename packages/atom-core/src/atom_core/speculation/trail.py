"""`Trail`: one request's drafter, and how often it has been right."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.speculation.drafter import NO_DRAFT, Draft, Drafter

# Right ones and all before anything is known: drafts are taken to be right as often as not.
_AT_FIRST = (1.0, 2.0)
# What each further one leaves of the weight of those before it: the last 16 or so count.
_KEPT = 0.94


class Trail:
    """Asks a drafter, and compares what it said with the tokens that came, whether or not they were computed as drafts.

    So it is known at no cost whether drafts would be right, also while none are made.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._draft, self._num_known = NO_DRAFT, 0
        # By level, of the drafts that came right after tokens that were right: how many were right, and how many.
        self._counts: dict[int, tuple[float, float]] = {}

    def look(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """What the drafter says; `token_ids` are all that are known, as in `Drafter`."""
        self._judge(token_ids)
        self._draft, self._num_known = self._drafter.propose(token_ids, num_tokens), len(token_ids)
        return self._draft

    def chance(self, level: int) -> float:
        """How likely a draft of this level is right if those before it are."""
        right, seen = self._counts.get(level, _AT_FIRST)
        return right / seen

    def _judge(self, token_ids: Sequence[int]) -> None:
        """Compare the last draft with what came after it was made."""
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
