"""What parsers of generated text emit, and the search for markers in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class Part(NamedTuple):
    """News. A "name" begins a call; "arguments" (JSON text) belong to the call begun last."""

    kind: Literal["content", "reasoning", "name", "arguments"]
    text: str


class Parser(Protocol):
    """Takes text in pieces. What it emits in all does not depend on where the pieces were cut."""

    def feed(self, text: str) -> list[Part]:
        """What is certain now."""
        ...

    def finish(self) -> list[Part]:
        """What was held back, once the text has ended."""
        ...


@dataclass
class Assembled:
    """Parts put together. `calls` are pairs of a name and JSON text."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def assemble(parts: Iterable[Part]) -> Assembled:
    """The whole that `parts` make up."""
    whole = Assembled()
    for kind, text in parts:
        if kind == "content":
            whole.content += text
        elif kind == "reasoning":
            whole.reasoning += text
        elif kind == "name":
            whole.calls.append((text, ""))
        else:
            name, arguments = whole.calls[-1]
            whole.calls[-1] = (name, arguments + text)
    return whole


def held_back(text: str, marker: str) -> int:
    """How many last characters of `text` may be the beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


def cut(text: str, marker: str) -> tuple[str, str, bool]:
    """`text` before `marker`, what is left to be looked at, and whether the marker was there."""
    before, found, after = text.partition(marker)
    if found:
        return before, after, True
    safe = len(text) - held_back(text, marker)
    return text[:safe], text[safe:], False


def as_parts(kind: Literal["content", "reasoning"], texts: Sequence[str]) -> list[Part]:
    """Parts of those texts that are not empty."""
    return [Part(kind, text) for text in texts if text]
