"""`ReplyReader`: what a model generates for a chat, read as content, reasoning and calls as it comes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from atom_server.output.parts import Parser, Part, joined

# (function's name, number of the call) -> the id that clients refer to the call by.
CallIds = Callable[[str, int], str]


def random_call_id(name: str, number: int) -> str:
    """An id in OpenAI's shape."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ReplyReader:
    """Reads one choice as its news come.

    Args:
        parser: None where all text is content.
        several: whether calls after the first are kept.
        keeps_reasoning: whether reasoning is part of the answer.
        call_ids: makes the ids of calls.
        strays: special tokens that are no content, wherever they turn up.

    Attributes:
        num_calls: that have begun.
        num_reasoning_tokens: how many of the tokens so far are reasoning.
    """

    def __init__(
        self,
        parser: Parser | None = None,
        *,
        several: bool = True,
        keeps_reasoning: bool = True,
        call_ids: CallIds = random_call_id,
        strays: Sequence[str] = (),
    ) -> None:
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self.call_ids = call_ids
        self._parser = parser
        self._most_calls = None if several else 1
        self._keeps_reasoning = keeps_reasoning
        self._strays = strays

    def take(self, text: str, num_tokens: int = 0, *, finished: bool = False) -> list[Part]:
        """The parts of new text of `num_tokens` tokens."""
        parser = self._parser
        if parser is None:
            return [Part("content", text)] if text else []
        was_reasoning = parser.is_reasoning
        parts = parser.feed(text)
        if was_reasoning or parser.is_reasoning or any(part.kind == "reasoning" for part in parts):
            self.num_reasoning_tokens += num_tokens
        if finished:
            parts = parts + parser.finish()
        return [part for part in map(self._without_strays, joined(parts)) if part.text and self._counts(part)]

    def _without_strays(self, part: Part) -> Part:
        """A special token is one piece of text, so it is not cut in two here."""
        text = part.text
        for stray in self._strays if part.kind == "content" else ():
            text = text.replace(stray, "")
        return part if text == part.text else Part(part.kind, text)

    def _counts(self, part: Part) -> bool:
        if part.kind == "reasoning":
            return self._keeps_reasoning
        self.num_calls += part.kind == "name"
        is_call = part.kind in ("name", "arguments")
        return not is_call or self._most_calls is None or self.num_calls <= self._most_calls


def read_whole(reader: ReplyReader, pieces: Iterable[tuple[str, int]]) -> list[Part]:
    """The parts of a whole reply; `pieces` are texts and their numbers of tokens."""
    parts = [part for text, num_tokens in pieces for part in reader.take(text, num_tokens)]
    return parts + reader.take("", finished=True)
