"""Log-probabilities in OpenAI's two formats, and prompt log-probabilities by token id."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from atom_core import CompletionLogprobs, Tokenizer
from atom_server.schemas.answers import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob

# JSON has no infinity; this is what OpenAI's servers answer for "never".
_LOWEST = -9999.0


# (token id, its text) -> what stands for the token in an answer.
Spelling = Callable[[int, str], str]


def by_text(token_id: int, text: str) -> str:
    """Spells a token by its text; several tokens may have the same."""
    return text


def by_id(token_id: int, text: str) -> str:
    """Spells a token as "token_id:17", which `return_tokens_as_token_ids` asks for."""
    return f"token_id:{token_id}"


def text_logprobs(
    entries: Sequence[CompletionLogprobs | None],
    *,
    first_token: tuple[int, str] = (0, ""),
    offset: int = 0,
    spelling: Spelling = by_text,
) -> TextLogprobs:
    """The parallel lists of a text completion.

    Args:
        entries: one for each token; None for a prompt's first token, which is `first_token`.
        offset: characters before the first of these tokens.
    """
    result = TextLogprobs([], [], [], [])
    for entry in entries:
        token_id, text = first_token if entry is None else (entry.token_id, entry.token)
        result.tokens.append(spelling(token_id, text))
        result.text_offset.append(offset)
        result.token_logprobs.append(None if entry is None else _finite(entry.logprob))
        result.top_logprobs.append(None if entry is None else _top(entry, spelling))
        offset += len(text)
    return result


def chat_logprobs(
    entries: Sequence[CompletionLogprobs], tokenizer: Tokenizer | None, num_top: int, spelling: Spelling = by_text
) -> ChatLogprobs:
    """The nested lists of a chat completion. `bytes` are exact where a token holds part of a character."""

    def spelt(token_id: int, text: str) -> tuple[int, ...]:
        return tuple(tokenizer.id_to_bytes(token_id) if tokenizer else text.encode())

    return ChatLogprobs(
        [
            TokenLogprob(
                token=spelling(entry.token_id, entry.token),
                logprob=_finite(entry.logprob),
                bytes=spelt(entry.token_id, entry.token),
                top_logprobs=[
                    TopLogprob(spelling(token_id, text), _finite(logprob), spelt(token_id, text))
                    for token_id, text, logprob in entry.top[:num_top]
                ],
            )
            for entry in entries
        ]
    )


def prompt_logprobs(entries: Sequence[CompletionLogprobs]) -> list[dict[str, Any] | None]:
    """One object for each prompt token, keyed by token id; None for the first, which nothing comes before."""
    result: list[dict[str, Any] | None] = [None]
    for entry in entries:
        row: dict[str, Any] = {
            str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}
            for rank, (token_id, text, logprob) in enumerate(entry.top, start=1)
        }
        row[str(entry.token_id)] = {
            "logprob": _finite(entry.logprob),
            "rank": entry.rank,
            "decoded_token": entry.token,
        }
        result.append(row)
    return result


def _top(entry: CompletionLogprobs, spelling: Spelling) -> dict[str, float]:
    """Logprobs of the likely tokens and the chosen one. If several tokens read alike, the likeliest counts."""
    top: dict[str, float] = {}
    for token_id, text, logprob in entry.top:
        top.setdefault(spelling(token_id, text), _finite(logprob))
    top.setdefault(spelling(entry.token_id, entry.token), _finite(entry.logprob))
    return top


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
