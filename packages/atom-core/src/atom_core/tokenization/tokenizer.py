"""`Tokenizer`: one interface to the tokenizers of model folders and of GGUF files. No transformers, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from atom_core.tokenization.byte_level import byte_level_bytes
from atom_core.tokenization.byte_pieces import spells_byte_pieces
from atom_core.tokenization.longest_token import most_characters_per_token

if TYPE_CHECKING:
    from atom_models import Checkpoint


class TokenizerError(ValueError):
    """A tokenizer that is missing, broken, or of a kind that cannot be read."""


class Tokenizer:
    """Encodes and decodes text, and knows its special tokens and chat template.

    Attributes:
        backend: the `tokenizers.Tokenizer` that does the work.
        chat_template: Jinja source, or None where the model has none.
        chat_templates: all templates by name ("default" and others).
        response_template: what the model declares of its way to write replies, as it stands in its configuration.
        special_tokens: the text of each special token by role: "bos_token", "eos_token", "pad_token", "unk_token".
        name: tokenizer class that the model names, for display; it never decides anything.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        response_template: Any = None,
        name: str = "",
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.response_template = response_template
        self.name = name
        self._texts: dict[int, str] = {}

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer that lies beside (a folder) or inside (GGUF) a checkpoint's weights.

        Raises:
            TokenizerError: no tokenizer.json, one that does not parse, or a GGUF vocabulary of an unknown kind.
        """
        if checkpoint.format == "gguf":
            from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf

            return tokenizer_from_gguf(checkpoint.gguf.metadata if checkpoint.gguf is not None else {})
        return cls.from_folder(checkpoint.path)

    @classmethod
    def of_model(cls, checkpoint: Checkpoint, folder: str | None = None) -> Tokenizer:
        """The tokenizer of a folder where one is named, else the model's own (see `from_checkpoint` for errors)."""
        return cls.from_checkpoint(checkpoint) if folder is None else cls.from_folder(folder)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder with tokenizer.json (see `from_checkpoint` for errors)."""
        from atom_core.tokenization.hf_folder import tokenizer_from_folder

        return tokenizer_from_folder(Path(folder))

    @property
    def chat_template(self) -> str | None:
        """The default chat template's Jinja source; None without one."""
        return self.chat_templates.get("default")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self.token_to_id(self.eos_token) if self.eos_token else None

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids with added tokens; a model's head may have more rows (padding)."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def most_characters_per_token(self) -> int | None:
        """The most characters of a text that one token stands for; None where nothing limits them."""
        return most_characters_per_token(self.backend)

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether tokens spell bytes in the alphabet of GPT-2."""
        return "ByteLevel" in repr(self.backend.decoder)

    @cached_property
    def spells_byte_pieces(self) -> bool:
        """Whether a text is the bytes of its tokens, less at most a space that begins it."""
        return spells_byte_pieces(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens spelt out in it become their ids."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text, as `encode` gives them.

        Other threads run meanwhile: the library holds the interpreter in `encode`, and lets go of it for a batch.
        """
        return [encoding.ids for encoding in self._encodings(texts, add_special_tokens)]

    def encode_up_to(
        self, most_tokens: int, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int] | int]:
        """As `encode_batch`; for a text of more than `most_tokens` its number of tokens alone."""
        encodings = self._encodings(texts, add_special_tokens)
        return [encoding.ids if len(encoding) <= most_tokens else len(encoding) for encoding in encodings]

    def encode_pairs_up_to(
        self, most_tokens: int, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[list[int], int] | int]:
        """Token ids of each pair as the tokenizer lays it out, and how many of them are of type 0, the first text's.

        That number is 0 where all are of one type. For a pair of more than `most_tokens` there is its number of tokens
        alone.
        """
        found: list[tuple[list[int], int] | int] = []
        for encoding in self.backend.encode_batch_fast(list(pairs)):
            if len(encoding) > most_tokens:
                found.append(len(encoding))
                continue
            types = encoding.type_ids
            found.append((encoding.ids, types.index(1) if 1 in types else 0))
        return found

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are no character become U+FFFD."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def decode_unlocked(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The same while other threads run (see `encode_batch`)."""
        return self.backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]

    def token_to_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it."""
        return self.backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it (not text: see `id_to_text`)."""
        return self.backend.id_to_token(token_id)

    def id_to_text(self, token_id: int) -> str:
        """Text of one token, with its leading space; U+FFFD for part of a character, "" for an unknown id."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.id_to_bytes(token_id).decode("utf-8", errors="replace")
        return text

    def id_to_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, exact also where it holds part of a character."""
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added_ids:
            return (token.replace("▁", " ") if self.spells_byte_pieces else token).encode()
        if self.is_byte_level:
            return byte_level_bytes(token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()

    def _encodings(self, texts: Sequence[str], add_special_tokens: bool) -> list[tokenizers.Encoding]:
        return self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())
