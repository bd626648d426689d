"""Vocabularies as llguidance takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

NUM_BYTES = 256


def make_tokenizer(
    tokens: Sequence[bytes],
    special_token_ids: Sequence[int],
    eos_token_ids: Sequence[int],
    encode: Callable[[bytes], list[int]],
    slices: list[str] | None = None,
) -> LLTokenizer:
    """llguidance's tokenizer of a vocabulary.

    Args:
        tokens: bytes, by token id.
        special_token_ids: tokens that are no text.
        eos_token_ids: tokens that end a sequence.
        encode: tokens of a text by itself.
        slices: regular expressions; None takes the library's own.
    """
    wrapper = TokenizerWrapper(_Described(tokens, special_token_ids, eos_token_ids[0], encode))
    return LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=list(eos_token_ids), slices=slices)


def tokenizer_of_bytes() -> LLTokenizer:
    """Every byte is a token, and one more ends the text."""
    tokens = [*(bytes([byte]) for byte in range(NUM_BYTES)), b"<end>"]
    return make_tokenizer(tokens, [NUM_BYTES], [NUM_BYTES], list, [])


class _Described:
    """The protocol of `TokenizerWrapper`."""

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_token_ids: Sequence[int],
        eos_token_id: int,
        encode: Callable[[bytes], list[int]],
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_token_ids, eos_token_id
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text)
