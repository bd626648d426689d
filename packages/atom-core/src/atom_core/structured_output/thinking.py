"""`ThinkingParser`: where a thinking budget is used up, nothing but the end mark is left to sample."""

from __future__ import annotations

from collections import deque

import numpy as np

from atom_core.messages import ThinkingBudget
from atom_core.structured_output.backend import Parser
from atom_core.structured_output.bits import one_token
from atom_core.structured_output.vocabulary import Vocabulary


class ThinkingParser:
    """A `Parser` around another one, or around free text.

    Args:
        budget: the request's budget.
        vocabulary: the model's vocabulary.
        inner: what the text follows besides, thinking included; None for free text.
    """

    def __init__(self, budget: ThinkingBudget, vocabulary: Vocabulary, inner: Parser | None = None) -> None:
        self._max_tokens = budget.max_tokens
        self._begin, self._end = budget.begin.encode(), budget.end.encode()
        self._vocabulary = vocabulary
        self._inner = inner
        self._state = "thinking" if budget.is_open else "before"
        self._tail = b""
        self._num_tokens = 0
        self._forced: deque[int] = deque()
        self._force_if_used_up()

    @property
    def is_over(self) -> bool:
        """Whether the text has left its thinking behind, or never began any."""
        return self._state == "over"

    def fill(self, words: np.ndarray) -> None:
        """Write the tokens that may come next, see `Parser`."""
        if self._inner is not None:
            self._inner.fill(words)
        else:
            words.fill(-1)
        if self._forced and self._is_allowed(words):
            words[:] = one_token(self._forced[0], len(words))

    def accept(self, token_id: int) -> None:
        """Follow a token."""
        if self._inner is not None:
            self._inner.accept(token_id)
        if self._forced and token_id == self._forced[0]:
            self._forced.popleft()
            if not self._forced:
                self._state = "over"
            return
        self._forced.clear()
        text = self._tail + self._vocabulary.tokens[token_id]
        if self._state == "before":
            self._look_for_begin(text)
        elif self._state == "thinking":
            self._num_tokens += 1
            self._look_for_end(text)
        self._force_if_used_up()

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is complete."""
        return not self._forced and (self._inner is None or self._inner.is_accepting)

    @property
    def error(self) -> str | None:
        """Why the text cannot be followed any further, None while it can."""
        return None if self._inner is None else self._inner.error

    def _is_allowed(self, words: np.ndarray) -> bool:
        """Whether the mark can begin here: a grammar does not let it stand inside a character."""
        token_id = self._forced[0]
        return bool(words.view(np.uint32)[token_id // 32] >> np.uint32(token_id % 32) & 1)

    def _look_for_begin(self, text: bytes) -> None:
        text = text.lstrip()
        if text.startswith(self._begin):
            self._state = "thinking"
            self._look_for_end(text[len(self._begin) :])
        else:
            self._tail = text
            self._state = "before" if self._begin.startswith(text) else "over"

    def _look_for_end(self, text: bytes) -> None:
        if self._end in text:
            self._state = "over"
        self._tail = text[max(0, len(text) - len(self._end) + 1) :]

    def _force_if_used_up(self) -> None:
        """What the model has written of the mark already stays written."""
        if self._state != "thinking" or self._num_tokens < self._max_tokens:
            return
        lengths = range(min(len(self._tail), len(self._end) - 1), 0, -1)
        written = next((length for length in lengths if self._end.startswith(self._tail[-length:])), 0)
        self._forced.extend(self._vocabulary.encode(self._end[written:]))
