"""A model's vocabulary as llguidance wants it: the bytes of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atom_core.tokenization import Tokenizer


class Vocabulary:
    """The protocol of llguidance's ``TokenizerWrapper``.

    Args:
        tokenizer: of the model.
        vocab_size: rows of the model's head; ids past the tokenizer's stand for nothing and are never allowed.
        eos_token_id: one token that ends a sequence.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.tokens = [tokenizer.id_to_bytes(token_id) for token_id in range(vocab_size)]
        empty = {token_id for token_id, text in enumerate(self.tokens) if not text}
        special = {token_id for token_id in tokenizer.special_token_ids if token_id < vocab_size}
        self.special_token_ids = sorted(special | empty)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


def make_parser_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> Any:
    """llguidance's tokenizer; takes about a tenth of a second for 50,000 tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = Vocabulary(tokenizer, vocab_size, eos_token_ids[0])
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocab_size, eos_token=list(eos_token_ids))
