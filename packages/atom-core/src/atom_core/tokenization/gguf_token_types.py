"""What a GGUF file says of each token of its vocabulary: its type and its score, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from atom_core.tokenization.tokenizer import TokenizerError

# Token types of the GGUF format, which are SentencePiece's.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_NAMES = {
    NORMAL: "normal",
    UNKNOWN: "unknown",
    CONTROL: "control",
    USER_DEFINED: "user-defined",
    UNUSED: "unused",
    BYTE: "byte",
}
INSTEAD = "give --tokenizer the model's folder with its tokenizer.json, or skip_tokenizer_init"


def read_types(tokens: Sequence[str], metadata: Mapping[str, Any]) -> list[int]:
    """The type of each token; all of a byte-level vocabulary are normal where the header does not say.

    Raises:
        TokenizerError: not one type for each token, or a type that the format does not have.
    """
    if metadata.get("tokenizer.ggml.token_type") is None and metadata.get("tokenizer.ggml.model") != "llama":
        return [NORMAL] * len(tokens)
    types = [_number(kind, "token_type") for kind in _for_each(tokens, metadata, "token_type")]
    for token_id, kind in enumerate(types):
        if kind not in _NAMES:
            known = ", ".join(f"{number} ({name})" for number, name in _NAMES.items())
            raise TokenizerError(
                f"the GGUF file's token {token_id} ({tokens[token_id]!r}) is of type {kind}; "
                f"known are {known}: {INSTEAD}"
            )
    return types


def read_scores(tokens: Sequence[str], metadata: Mapping[str, Any]) -> list[float]:
    """The score of each token.

    Raises:
        TokenizerError: not one score for each token, or one that is no finite number.
    """
    scores = [float(_number(score, "scores")) for score in _for_each(tokens, metadata, "scores")]
    for token_id, score in enumerate(scores):
        if not math.isfinite(score):
            raise TokenizerError(
                f"the GGUF file's token {token_id} ({tokens[token_id]!r}) has the score {score}, "
                f"which is no finite number: {INSTEAD}"
            )
    return scores


def token_id_in(tokens: Sequence[str], metadata: Mapping[str, Any], name: str) -> int | None:
    """The id that `tokenizer.ggml.{name}_token_id` holds; None where there is none, or one outside of `tokens`."""
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if token_id is None:
        return None
    number = _number(token_id, f"{name}_token_id")
    return int(number) if 0 <= number < len(tokens) else None


def _number(value: Any, name: str) -> Any:
    if isinstance(value, (int, float)) or hasattr(value, "__index__"):
        return value
    raise TokenizerError(f"the GGUF file's tokenizer.ggml.{name} holds {value!r:.60}, which is no number: {INSTEAD}")


def _for_each(tokens: Sequence[str], metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        raise TokenizerError(f"the GGUF file's SentencePiece vocabulary lacks tokenizer.ggml.{name}: {INSTEAD}")
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(tokens):
        found = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else repr(values)
        raise TokenizerError(
            f"the GGUF file has {len(tokens)} tokens, but tokenizer.ggml.{name} holds {found}, not one for each: "
            f"{INSTEAD}"
        )
    return values
