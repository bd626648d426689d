"""`Matcher`: where one request's text stands in its grammar, and which tokens can only come next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from atom_core.structured_output.backend import Parser
from atom_core.structured_output.bits import one_token, only_token
from atom_core.structured_output.work_budget import SLOW_SECONDS, WorkBudget

# A run longer than this is followed in several steps, so that none of them takes long.
MAX_FORCED = 128


class Matcher:
    """Follows the tokens of one request.

    Args:
        parser: at the grammar's start; it is the matcher's from now on.
        vocab_size: rows of the model's head.
        end_token_ids: tokens that end the request: sampled only where the grammar can end.
        max_forced: tokens without a choice are followed this far at once; 0 leaves all to be sampled.
        budget: how much work the parser may make.

    Attributes:
        is_slow: the last mask that was made took long.
        num_tokens: followed so far.
    """

    def __init__(
        self,
        parser: Parser,
        vocab_size: int,
        end_token_ids: Sequence[int],
        *,
        max_forced: int = MAX_FORCED,
        budget: WorkBudget | None = None,
    ) -> None:
        self._budget = budget or WorkBudget()
        self._max_forced = max_forced
        self._parser = parser
        self._end_token_ids = frozenset(end_token_ids)
        self._ends = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        for token_id in end_token_ids:
            if token_id < vocab_size:
                self._ends |= one_token(token_id, len(self._ends))
        self._mask: np.ndarray | None = None
        self._ahead: deque[int] = deque()
        self._error: str | None = None
        self.is_slow = False
        self.num_tokens = 0

    def mask(self) -> np.ndarray:
        """Tokens that may come next: int32 ``[ceil(vocab / 32)]``, bit ``i % 32`` of word ``i // 32`` is token i."""
        return one_token(self._ahead[0], len(self._ends)) if self._ahead else self._parser_mask()

    @property
    def has_mask(self) -> bool:
        """Whether `mask` costs nothing now."""
        return bool(self._ahead) or self._mask is not None

    @property
    def work_so_far(self) -> float:
        """Seconds of processor time that masks took, of all samples of this request."""
        return self._budget.used

    def take_forced(self, may_go_on: Callable[[], bool] = lambda: True) -> list[int]:
        """Follow tokens for as long as the mask leaves one only, and return them; `accept` then expects these.

        Nothing is followed behind a slow mask, or once `may_go_on` says no: what is left comes with later steps.
        """
        if self._ahead:
            return []
        while len(self._ahead) < self._max_forced and self.error is None:
            if self.is_slow or (self._mask is None and not may_go_on()):
                break
            token_id = only_token(self._parser_mask())
            if token_id is None:
                break
            self._ahead.append(token_id)
            if token_id in self._end_token_ids:
                break
            self._follow(token_id)
        return list(self._ahead)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Follow tokens that were sampled under `mask`; see `error` for one that the grammar does not take."""
        for token_id in token_ids:
            if not self._ahead:
                self._follow(token_id)
            elif (expected := self._ahead.popleft()) != token_id:
                self._error = f"token {token_id} came where only {expected} could"

    def fail(self, error: str) -> None:
        """The text cannot be followed any further."""
        self._error = error

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is complete."""
        return self._parser.is_accepting

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, None while it can."""
        if self._budget.is_used_up:
            return "it takes too much work to follow: make it simpler"
        return self._error or self._parser.error

    def _follow(self, token_id: int) -> None:
        self.num_tokens += 1
        self._budget.refill()
        begun = self._budget.clock()
        self._parser.accept(token_id)
        self._budget.spend(self._budget.clock() - begun)
        self._mask = None

    def _parser_mask(self) -> np.ndarray:
        if self._mask is None:
            words = np.zeros_like(self._ends)
            begun = self._budget.clock()
            self._parser.fill(words)
            seconds = self._budget.clock() - begun
            self._budget.spend(seconds)
            self.is_slow = seconds > SLOW_SECONDS
            if self._parser.is_accepting:
                self._mask = words | self._ends
            else:
                inner = words & ~self._ends
                # A stop token that is the grammar's only way on is text here.
                self._mask = inner if inner.any() else words
            if not self._mask.any() and self.error is None:
                self._error = "no token can come next"
        return self._mask
