"""What parsers of generated text emit, and the search for marks in text that comes in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class Part(NamedTuple):
    """A piece of the answer. A "name" begins a call; "arguments" (JSON text) belong to the call begun last."""

    kind: Literal["content", "reasoning", "name", "arguments"]
    text: str


class Parser(Protocol):
    """Takes text in pieces. What it emits in all does not depend on where the pieces were cut."""

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        ...

    def finish(self) -> list[Part]:
        """What was held back, once the text has ended."""
        ...

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        ...


class CallBody(Protocol):
    """Reads what stands between a call's mark and its end.

    Attributes:
        done: it has come to its end, or broken off.
        rest: the text after it.
    """

    done: bool = False
    rest: str = ""

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        ...


class SteppingParser(ABC):
    """Goes on step by step, until a step neither takes text nor comes to another state.

    Attributes:
        done: nothing more is read.
        rest: the text that has not been taken.
    """

    def __init__(self, state: str) -> None:
        self.done = False
        self.rest = ""
        self._state = state

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        self.rest += text
        parts: list[Part] = []
        while self.rest and not self.done:
            state, length = self._state, len(self.rest)
            parts += self._step()
            if (state, length) == (self._state, len(self.rest)):
                break
        return parts

    @abstractmethod
    def _step(self) -> list[Part]:
        """Take text from the front of the rest."""


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


class Cut(NamedTuple):
    """Text `before` a mark, the `rest` that is left to be looked at, and the `mark`, "" where there was none."""

    before: str
    rest: str
    mark: str


def cut(text: str, *marks: str) -> Cut:
    """`text` at the first of `marks`. Without one, an end that may be the beginning of a mark is the rest."""
    found = [(position, -len(mark), mark) for mark in marks if (position := text.find(mark)) >= 0]
    if found:
        position, _, mark = min(found)
        return Cut(text[:position], text[position + len(mark) :], mark)
    safe = len(text) - max(held_back(text, mark) for mark in marks)
    return Cut(text[:safe], text[safe:], "")


def held_back(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    start = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while start >= 0:
        if mark.startswith(text[start:]):
            return len(text) - start
        start = text.find(mark[0], start + 1)
    return 0


def as_parts(kind: Literal["content", "reasoning", "arguments"], texts: Sequence[str]) -> list[Part]:
    """Parts of those texts that are not empty."""
    return [Part(kind, text) for text in texts if text]


def joined(parts: Iterable[Part]) -> list[Part]:
    """The parts, with neighbors of one kind made one; names stay apart."""
    result: list[Part] = []
    for part in parts:
        if result and result[-1].kind == part.kind != "name":
            part = Part(part.kind, result.pop().text + part.text)
        result.append(part)
    return result
