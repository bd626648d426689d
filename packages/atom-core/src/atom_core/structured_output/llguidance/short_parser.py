"""`ShortParser`: masks from a vocabulary in which tokens that a pattern cannot tell apart are one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atom_core.structured_output.backend import Parser
from atom_core.structured_output.llguidance.alphabet import (
    UnknownNotationError,
    same_characters,
    sets_of_lark,
    sets_of_pattern,
)
from atom_core.structured_output.llguidance.short_vocabulary import ShortVocabulary
from atom_core.structured_output.vocabulary import Vocabulary

# Making one takes 20 ms for 50,000 tokens, during which other threads hardly run: so their number is limited.
MAX_VOCABULARIES = 32
# A short vocabulary with more than this share of all tokens saves too little.
LARGEST_SHARE = 0.25
_READERS = {"regex": sets_of_pattern, "grammar": sets_of_lark, "structural_tag": sets_of_lark}


class ShortVocabularies:
    """Short vocabularies of one model, each made once."""

    def __init__(self, vocabulary: Vocabulary, eos_token_ids: Sequence[int]) -> None:
        self._vocabulary, self._eos_token_ids = vocabulary, eos_token_ids
        self._made: dict[tuple[str, ...], ShortVocabulary] = {}

    def for_constraint(self, kind: str, text: str) -> ShortVocabulary | None:
        """The vocabulary that is short for a "regex" or for a grammar in Lark's notation; None where none is."""
        read = _READERS.get(kind)
        if read is None:
            return None
        try:
            parts = same_characters(read(text))
        except UnknownNotationError:
            return None
        found = self._made.get(parts)
        if found is None:
            if len(self._made) >= MAX_VOCABULARIES:
                return None
            found = self._made[parts] = ShortVocabulary(self._vocabulary, self._eos_token_ids, parts)
        return found if found.num_tokens <= LARGEST_SHARE * len(self._vocabulary.tokens) else None


class ShortParser:
    """See `Parser`. The exact parser follows every token, and gives the masks that the short one cannot.

    Args:
        exact: a parser over the whole vocabulary.
        short: a parser of the same grammar over the short vocabulary.
        vocabulary: the short vocabulary.
    """

    def __init__(self, exact: Parser, short: Parser, vocabulary: ShortVocabulary) -> None:
        self._exact, self._short, self._vocabulary = exact, short, vocabulary
        self._short_words = np.zeros(-(-vocabulary.num_tokens // 32), dtype=np.int32)

    def fill(self, words: np.ndarray) -> None:
        self._short.fill(self._short_words)
        mask = None if self._short.error is not None else self._vocabulary.mask_of(self._short_words)
        if mask is None:
            self._exact.fill(words)
        else:
            words[:] = mask

    def accept(self, token_id: int) -> None:
        self._exact.accept(token_id)
        self._short.accept(int(self._vocabulary.short_ids[token_id]))

    @property
    def is_accepting(self) -> bool:
        return self._exact.is_accepting

    @property
    def error(self) -> str | None:
        return self._exact.error
