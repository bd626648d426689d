"""SentencePiece's BPE out of a GGUF file: a vocabulary with scores, of which the merges follow.

SentencePiece joins, of all neighbors that spell a token, those whose token has the best score, and of equal ones those
furthest left. `tokenizers` joins by a list of merges: here every way to cut a token in two, the tokens of the best
scores first (as transformers' converter does). Both give the same tokens wherever no two tokens compete with one score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from atom_core.tokenization.gguf_token_types import (
    BYTE,
    INSTEAD,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_scores,
    token_id_in,
)
from atom_core.tokenization.tokenizer import TokenizerError

_SPACE = "▁"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Changes to texts that other kinds of vocabulary ask for.
_CHANGES_TEXTS = ("precompiled_charsmap", "remove_extra_whitespaces")


def spelled_as_in_texts(tokens: list[str], types: Sequence[int]) -> list[str]:
    """`tokens` with spaces in those that a publisher defined: converters of before 2024-07 left them as ▁."""
    known = set(tokens)
    spaced = [
        token.replace(_SPACE, " ") if kind == USER_DEFINED else token for token, kind in zip(tokens, types, strict=True)
    ]
    return [
        token if token != changed and changed in known else changed
        for token, changed in zip(tokens, spaced, strict=True)
    ]


def sentencepiece_bpe(tokens: list[str], types: Sequence[int], metadata: Mapping[str, Any]) -> Backend:
    """The tokenizer of a vocabulary with scores.

    Raises:
        TokenizerError: the header lacks scores, or its vocabulary is one whose tokens do not follow from merges alone.
    """
    scores = read_scores(tokens, metadata)
    _check(tokens, types, metadata)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = _unknown_token(tokens, types, metadata)
    merges = _merges(tokens, scores, types)
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    return backend


def _check(tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any]) -> None:
    for name in _CHANGES_TEXTS:
        if metadata.get(f"tokenizer.ggml.{name}"):
            raise TokenizerError(f"the GGUF file's SentencePiece BPE names {name}, which is unknown here: {INSTEAD}")
    used = [token for token, kind in zip(tokens, types, strict=True) if kind != UNUSED]
    twice = [token for token, count in Counter(used).items() if count > 1]
    if twice:
        ids = [token_id for token_id, token in enumerate(tokens) if token == twice[0]]
        raise TokenizerError(f"the GGUF file's tokens {ids[0]} and {ids[1]} are both {twice[0]!r}: {INSTEAD}")
    in_bytes = {token for token, kind in zip(tokens, types, strict=True) if kind == BYTE}
    wrong = sorted(in_bytes.symmetric_difference(_BYTES)) if in_bytes else []
    if wrong:
        what = "is no byte as <0x00> to <0xFF> spell them" if wrong[0] in in_bytes else "is missing"
        raise TokenizerError(
            f"the GGUF file's SentencePiece vocabulary has byte tokens, but {wrong[0]} {what}: {INSTEAD}"
        )


def _unknown_token(tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any]) -> str:
    if UNKNOWN in types:
        return tokens[types.index(UNKNOWN)]
    token_id = token_id_in(tokens, {"tokenizer.ggml.unknown_token_id": 0, **metadata}, "unknown")
    if token_id is None:
        given = metadata["tokenizer.ggml.unknown_token_id"]
        raise TokenizerError(
            f"the GGUF file's tokenizer.ggml.unknown_token_id is {given}, but there are {len(tokens)} tokens: {INSTEAD}"
        )
    return tokens[token_id]


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the tokens of the highest scores first."""
    ids = {token: token_id for token_id, token in enumerate(tokens) if types[token_id] in (NORMAL, UNUSED)}
    merges: list[tuple[str, str]] = []
    before: str | None = None
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        found = [(left, right) for left, right in halves if left in ids and right in ids]
        if not found:
            continue
        if types[ids[token]] == UNUSED:
            raise TokenizerError(
                f"the GGUF file's token {ids[token]} ({token!r}) is unused, but others spell it: texts would be cut "
                f"otherwise than the model learned them: {INSTEAD}"
            )
        # Runs of one character (spaces, in Llama's vocabularies) come out alike in both orders.
        if before is not None and scores[ids[token]] == scores[ids[before]] and len(set(before + token)) > 1:
            raise TokenizerError(
                f"the GGUF file's tokens {ids[before]} ({before!r}) and {ids[token]} ({token!r}) have one score, "
                f"{scores[ids[token]]:g}, so that which of them a text has is not told: {INSTEAD}"
            )
        before = token
        found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += found
    return merges
