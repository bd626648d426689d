"""`Matcher`: where one request's text stands in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Matcher:
    """Follows the tokens of one request.

    Args:
        start: llguidance's matcher at the grammar's start; copied, not changed.
        vocab_size: rows of the model's head.
        end_token_ids: tokens that end the request: sampled only where the grammar can end.
    """

    def __init__(self, start: Any, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self._parser = start.deep_copy()
        self._num_words = -(-vocab_size // 32)
        ends = np.zeros(self._num_words, dtype=np.uint32)
        for token_id in end_token_ids:
            if token_id < vocab_size:
                ends[token_id // 32] |= np.uint32(1 << (token_id % 32))
        self._ends = ends.view(np.int32)

    def mask(self) -> np.ndarray:
        """Tokens that may come next: int32 ``[ceil(vocab / 32)]``, bit ``i % 32`` of word ``i // 32`` is token i."""
        words = np.zeros(self._num_words, dtype=np.int32)
        self._parser.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._parser.is_accepting():
            return words | self._ends
        inner = words & ~self._ends
        # A stop token that is the grammar's only way on is text here.
        return inner if inner.any() else words

    def accept(self, token_ids: Sequence[int]) -> None:
        """Follow tokens that were sampled under `mask`; see `error` for one that the grammar does not take."""
        for token_id in token_ids:
            self._parser.consume_token(token_id)

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is complete."""
        return self._parser.is_accepting()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, None while it can."""
        return self._parser.get_error().splitlines()[0] if self._parser.is_error() else None
