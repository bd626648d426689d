"""Masks of one token: int32 ``[ceil(vocab / 32)]``, bit ``i % 32`` of word ``i // 32`` is token i."""

from __future__ import annotations

import numpy as np


def one_token(token_id: int, num_words: int) -> np.ndarray:
    """The mask that allows this token alone."""
    words = np.zeros(num_words, dtype=np.uint32)
    words[token_id // 32] = np.uint32(1 << (token_id % 32))
    return words.view(np.int32)


def only_token(words: np.ndarray) -> int | None:
    """The one token that a mask allows; None where it allows none, or several."""
    (found,) = words.nonzero()
    if len(found) != 1:
        return None
    word = int(words[found[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(found[0]) * 32 + word.bit_length() - 1
