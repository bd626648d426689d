"""Reads a vocabulary of tiktoken: a line for each token, its bytes in base 64 and its rank.

The file has neither merges nor a pattern. Two neighbors merge wherever the vocabulary has what they spell together, the
lowest rank first, so that every way to cut a token in two is a merge of its rank. The pattern that cuts texts is in the
publisher's code, which is not run: it is known here by the name of that code.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, decoders, models, processors
from tokenizers import Tokenizer as Backend

from atom_core.tokenization.byte_level import byte_level_spelling
from atom_core.tokenization.gguf_pre_tokenizers import PRE_TOKENIZERS
from atom_core.tokenization.tokenizer import TokenizerError

FILE_NAME = "tiktoken.model"
# Ids behind the ranks that the publisher's code keeps for special tokens, named or not.
_NUM_RESERVED = 256
# By the module of the publisher's code: which pattern is in it.
_PATTERNS: Mapping[str, str] = MappingProxyType({"tokenization_kimi": "kimi-k2", "tokenization_moonshot": "kimi-k2"})
_INSTEAD = "give a folder that holds a tokenizer.json, or token ids with skip_tokenizer_init"


def backend_from_tiktoken(path: Path, config: Mapping[str, Any]) -> Backend:
    """The tokenizer of a vocabulary and of what `tokenizer_config.json` says of its special tokens.

    Raises:
        TokenizerError: a line that is no token, ranks with a gap, or code whose pattern is not known here.
    """
    cut = PRE_TOKENIZERS[_pattern(path, config)]
    ranks = _read_ranks(path)
    vocab = {byte_level_spelling(token): rank for token, rank in ranks.items()}
    # tiktoken takes a piece that is a token as it stands, whatever its merges would give.
    backend = Backend(models.BPE(vocab=vocab, merges=_merges(ranks), fuse_unk=False, ignore_merges=True))
    backend.pre_tokenizer = cut.build()
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.post_processor = processors.ByteLevel(trim_offsets=False)  # type: ignore[assignment]
    for token in _special_tokens(len(ranks), config):
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return backend


def _pattern(path: Path, config: Mapping[str, Any]) -> str:
    code = (config.get("auto_map") or {}).get("AutoTokenizer")
    reference = code[0] if isinstance(code, list) and code else code
    module = str(reference or "").rsplit("--", 1)[-1].partition(".")[0]
    if module not in _PATTERNS:
        # Any guess would cut some texts otherwise than the model learned them, and nobody would notice.
        says = f"is read by code named {module!r}" if module else "names no code that reads it (auto_map)"
        raise TokenizerError(
            f"{path} {says}, whose way to cut texts is unknown here; known are {', '.join(_PATTERNS)}: {_INSTEAD}"
        )
    return _PATTERNS[module]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Bytes of each token -> its rank, which is its id; in the order of the ranks."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            spelt, rank = line.split()
            token = base64.b64decode(spelt, validate=True)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(f"{path}, line {number} is no token in base 64 and its rank: {line[:80]!r}") from error
        if not token or token in ranks or not rank.isdigit() or int(rank) != len(ranks):
            raise TokenizerError(
                f"{path}, line {number}: expected a new token with rank {len(ranks)}, found {line[:80]!r}"
            )
        ranks[token] = int(rank)
    if not ranks:
        raise TokenizerError(f"{path} holds no token: {_INSTEAD}")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """All pairs of tokens that spell a token, in the order of its rank."""
    return [
        (byte_level_spelling(token[:cut]), byte_level_spelling(token[cut:]))
        for token in ranks
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def _special_tokens(first: int, config: Mapping[str, Any]) -> list[AddedToken]:
    """One for each reserved id, from `first` on."""
    named = config.get("added_tokens_decoder") or {}
    tokens = []
    for token_id in range(first, first + _NUM_RESERVED):
        entry = named.get(str(token_id)) or {}
        name = str(entry.get("content") or f"<|reserved_token_{token_id}|>")
        tokens.append(AddedToken(name, special=bool(entry.get("special", True)), normalized=False))
    return tokens
