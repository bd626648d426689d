"""`Vocabulary`: a model's tokens as the libraries of structured output want them."""

from __future__ import annotations

import re

from atom_core.tokenization import Tokenizer


class Vocabulary:
    """The bytes of each token, and which of them are no text.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: rows of the model's head; ids past the tokenizer's stand for nothing and are never allowed.

    Attributes:
        tokens: bytes, by token id.
        special_token_ids: tokens that free text, JSON and patterns never hold, those that stand for nothing included.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.id_to_bytes(token_id) for token_id in range(vocab_size)]
        empty = {token_id for token_id, text in enumerate(self.tokens) if not text}
        special = {token_id for token_id in tokenizer.special_token_ids if token_id < vocab_size} - empty
        self.special_token_ids = sorted(special | empty)
        self._special = {tokenizer.id_to_text(token_id): token_id for token_id in special}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._border = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    def encode(self, text: str | bytes) -> list[int]:
        """Tokens of a text by itself."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)

    def split(self, text: str) -> list[str | int]:
        """The text between special tokens, and the ids of those."""
        parts = self._border.split(text) if self._border is not None else [text]
        return [self._special.get(part, part) for part in parts if part]
