"""`BytePieces`: text of tokens that spell bytes, as they come; for vocabularies in the way of SentencePiece.

There a character that the vocabulary lacks is a run of byte tokens, and so is every newline of some models. All tokens
are bytes that join to UTF-8, so that no token has to be decoded twice, and none before the first one matters but for
the space that begins a text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_core.tokenization.tokenizer import Tokenizer

_SPACES, _STRIP = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, "Strip"
_JOINED = [_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
_LEADING = [{"type": _STRIP, "content": " ", "start": 1, "stop": 0}]


def spells_byte_pieces(tokenizer: Tokenizer) -> bool:
    """Whether the decoder does no more than to join bytes, and to take one space off the beginning."""
    decoder = tokenizer.backend.decoder
    state = {} if decoder is None else json.loads(decoder.__getstate__())
    return state.get("decoders") in (_JOINED, _JOINED + _LEADING)


class BytePieces:
    """Text of one growing sequence; bytes that can never be a character come out as U+FFFD, and all others as they are.

    Args:
        prompt_token_ids: what the text comes after.
        skipped: ids of tokens that are no part of a text, nor of the prompt's.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skipped: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        strips = _STRIP in repr(tokenizer.backend.decoder)
        self._at_start = strips and all(token_id in self._skipped for token_id in prompt_token_ids)

    def add(self, token_id: int) -> str:
        """Text that `token_id` settles; "" while its character is unfinished."""
        if token_id in self._skipped:
            return ""
        spelled = self._tokenizer.id_to_bytes(token_id)
        if self._at_start and spelled:
            self._at_start = False
            spelled = spelled.removeprefix(b" ")
        return self._decoder.decode(spelled)
