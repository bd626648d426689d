"""SentencePiece's BPE out of a GGUF file: a vocabulary with scores, of which the merges follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from atom_core.tokenization.tokenizer import TokenizerError

# Token types of the GGUF format.
_NORMAL, _UNKNOWN = 1, 2
_SPACE = "▁"


def sentencepiece_bpe(tokens: list[str], metadata: Mapping[str, Any]) -> Backend:
    """The tokenizer of a vocabulary with scores.

    Raises:
        TokenizerError: the header has no scores or no types for its tokens.
    """
    scores, types = (_for_each(tokens, metadata, name) for name in ("scores", "token_type"))
    unknown = next((token for token, kind in zip(tokens, types, strict=False) if kind == _UNKNOWN), None)
    if unknown is None:
        unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", 0)
        unknown = tokens[unknown_id] if unknown_id < len(tokens) else None
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
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


def _for_each(tokens: list[str], metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None or len(values) < len(tokens):
        raise TokenizerError(f"the GGUF file's SentencePiece vocabulary lacks tokenizer.ggml.{name}")
    return values


def _merges(tokens: list[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the tokens of the highest scores first."""
    ids = {token: token_id for token_id, token in enumerate(tokens) if types[token_id] == _NORMAL}
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        found = [(left, right) for left, right in halves if left in ids and right in ids]
        found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += found
    return merges
