"""How many characters of a text one token can stand for, where the parts of a tokenizer set a bound at all."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers.models import BPE

from atom_core.tokenization.byte_level import BYTE_OF_CHARACTER

# One composed character stands for at most 4 (Unicode Standard Annex #15, the expansion of NFD in UTF-32).
_MOST_COMPOSED = 4
_UNICODE_FORMS = frozenset(("NFC", "NFD", "NFKC", "NFKD"))
_GROWING_NORMALIZERS = frozenset(("Lowercase", "Prepend", "ByteLevel"))
# Pre-tokenizers that only cut; others drop what lies between words.
_CUTTING_PRE_TOKENIZERS = frozenset(("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"))


def most_characters_per_token(backend: tokenizers.Tokenizer) -> int | None:
    """The most characters of a text that one token stands for; None where nothing limits them.

    Nothing limits them where a part drops text (spaces between words, control characters), where one unknown token
    stands for a whole run, and where an added token takes the spaces beside it along.
    """
    vocabulary = backend.get_vocab(with_added_tokens=True)
    composed = _characters_per_normalized(_state(backend.normalizer))
    if composed is None or not _keeps_all(_state(backend.pre_tokenizer)) or not _spells_all(backend, vocabulary):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    return composed * max(map(len, vocabulary), default=1)


def _state(part: Any) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer as tokenizer.json writes it."""
    return None if part is None else json.loads(part.__getstate__())


def _characters_per_normalized(normalizer: dict[str, Any] | None) -> int | None:
    """The most characters that become one; None where they may become none."""
    if normalizer is None or normalizer["type"] in _GROWING_NORMALIZERS:
        return 1
    if normalizer["type"] in _UNICODE_FORMS:
        return _MOST_COMPOSED
    if normalizer["type"] == "Replace":
        replaced = normalizer["pattern"].get("String")
        return 1 if replaced is not None and len(normalizer["content"]) >= len(replaced) else None
    if normalizer["type"] != "Sequence":
        return None
    most = 1
    for part in normalizer["normalizers"]:
        characters = _characters_per_normalized(part)
        if characters is None:
            return None
        most *= characters
    return most


def _keeps_all(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether every character reaches the model."""
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _CUTTING_PRE_TOKENIZERS and pre_tokenizer.get("behavior") != "Removed"


def _spells_all(backend: tokenizers.Tokenizer, vocabulary: dict[str, int]) -> bool:
    """Whether no text is left out, and no unknown token stands for more than a character."""
    model = backend.model
    if not isinstance(model, BPE):
        return False
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    if model.unk_token is not None and not model.fuse_unk:
        return True
    is_byte_level = '"ByteLevel"' in json.dumps([_state(backend.normalizer), _state(backend.pre_tokenizer)])
    return is_byte_level and all(character in vocabulary for character in BYTE_OF_CHARACTER)
