"""`IncrementalDetokenizer`: text from tokens as they come, never half a character."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers.decoders import DecodeStream

from atom_core.tokenization.byte_pieces import BytePieces
from atom_core.tokenization.tokenizer import Tokenizer

# A character of UTF-8 is at most 4 bytes, so of an undecidable tail only the last 3 tokens can still become one.
MAX_OPEN_TOKENS = 3
PATIENCE = 8
# Every new token decodes all pending ones again: without a limit, each would take longer than the last.
MAX_PENDING = 32
PRIMING_TOKENS = 6


class IncrementalDetokenizer:
    """Text of one growing sequence.

    The texts that `add` and the final `flush` return join to what decoding all tokens at once gives, less an
    unfinished character at the very end. Bytes that can never be a character come out as U+FFFD: where tokens are bytes
    as SentencePiece's, those bytes alone (decoding at once loses all byte tokens beside them).

    Args:
        skip_special_tokens: leave special tokens out, but for `kept_special_token_ids`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        kept_special_token_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        # The library leaves out all special tokens or none: where some are kept, the others are left out here.
        self._skipped = tokenizer.special_token_ids.difference(kept_special_token_ids) if skip_special_tokens else ()
        self._skip_special_tokens = skip_special_tokens and not kept_special_token_ids
        self._pending: list[int] = []
        self._pieces = (
            BytePieces(tokenizer, prompt_token_ids, skipped=self._skipped) if tokenizer.spells_byte_pieces else None
        )
        # Decoders that strip a leading space must know that text came before; byte-level ones need no context.
        self._context = [] if tokenizer.is_byte_level else list(prompt_token_ids[-PRIMING_TOKENS:])
        self._stream = self._new_stream()

    def add(self, token_id: int) -> str:
        """Text that `token_id` settles: its own, that of tokens held back before it, or "" when it must wait."""
        if token_id in self._skipped:
            return ""
        if self._pieces is not None:
            return self._pieces.add(token_id)
        text = self._take(token_id)
        return text or (self._give_up_on_old_tokens() if len(self._pending) > PATIENCE else "")

    def flush(self) -> str:
        """What is settled of the tokens still held, once no more will come; an unfinished character is dropped."""
        pending, self._pending = self._pending, []
        text = self._decode(pending) if pending else ""
        return text if self._are_characters(pending) else text.rstrip("\ufffd")

    def _are_characters(self, token_ids: list[int]) -> bool:
        """Whether the bytes of `token_ids` are whole characters: U+FFFD is one too, where a model writes it."""
        try:
            b"".join(map(self._tokenizer.id_to_bytes, token_ids)).decode()
        except UnicodeDecodeError:
            return False
        return True

    def _take(self, token_id: int) -> str:
        """Text that a token settles; without any it is pending."""
        try:
            text = self._stream.step(self._tokenizer.backend, token_id)
        except Exception:  # the library raises bare Exception where bytes make no sense together
            text = None
            self._stream = self._new_stream()
        if text is None:
            self._pending.append(token_id)
            return ""
        self._pending.clear()
        return text

    def _give_up_on_old_tokens(self) -> str:
        """Release bytes that have been waiting for longer than any character could need."""
        pending = self._pending
        whole = self._decode(pending)
        for kept in range(MAX_OPEN_TOKENS, PATIENCE):
            text, tail = self._decode(pending[:-kept]), pending[-kept:]
            if text + self._decode(tail) == whole:
                self._start_anew()
                return text + "".join(map(self._take, tail))
        if len(pending) < MAX_PENDING:
            return ""
        self._start_anew()
        return whole

    def _start_anew(self) -> None:
        self._pending = []
        self._stream = self._new_stream()

    def _decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids` where they stand: after what came before them."""
        before = self._context if self._context else []
        whole = self._tokenizer.decode([*before, *token_ids], self._skip_special_tokens)
        return whole[len(self._tokenizer.decode(before, self._skip_special_tokens)) :] if before else whole

    def _new_stream(self) -> DecodeStream:
        return DecodeStream(ids=self._context or None, skip_special_tokens=self._skip_special_tokens)
