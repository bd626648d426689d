"""Words that must not be generated, as token ids."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.tokenization.tokenizer import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Each word at the beginning of a text and after a space, as the tokenizer spells it."""
    spellings = [spelling for word in words for spelling in (word.lstrip(" ") or word, " " + word.lstrip(" "))]
    ids = tokenizer.encode_batch(spellings, add_special_tokens=False)
    return [list(sequence) for sequence in dict.fromkeys(map(tuple, ids)) if sequence]
