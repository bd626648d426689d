"""From parsed output to messages and to the deltas of a stream."""

from __future__ import annotations

import uuid

from msgspec import UNSET

from atom_server.output.parts import Parser, Part, assemble
from atom_server.schemas.responses import Delta, FunctionCall, Message, ToolCall


def message_of(parser: Parser, text: str) -> Message:
    """The message that a whole text is."""
    whole = assemble(parser.feed(text) + parser.finish())
    calls = [
        ToolCall(id=_new_id(), type="function", function=FunctionCall(name, arguments))
        for name, arguments in whole.calls
    ]
    reasoning = whole.reasoning or UNSET
    return Message(
        whole.content or None if calls else whole.content,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )


class DeltaWriter:
    """The deltas of one choice.

    Attributes:
        has_calls: a call has begun.
    """

    def __init__(self, parser: Parser | None) -> None:
        self._parser = parser
        self._num_calls = 0

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def deltas(self, text: str, finished: bool, always: bool) -> list[Delta]:
        """What is new. `always`: one delta at least, for something that goes with it."""
        if self._parser is None:
            return [Delta(content=text)] if text or always else []
        parts = self._parser.feed(text)
        if finished:
            parts = parts + self._parser.finish()
        deltas = [self._delta(part) for part in _joined(parts)]
        return deltas or ([Delta(content="")] if always else [])

    def _delta(self, part: Part) -> Delta:
        if part.kind == "content":
            return Delta(content=part.text)
        if part.kind == "reasoning":
            return Delta(reasoning_content=part.text, reasoning=part.text)
        if part.kind == "arguments":
            call = ToolCall(index=self._num_calls - 1, function=FunctionCall(arguments=part.text))
        else:
            function = FunctionCall(part.text)
            call = ToolCall(index=self._num_calls, id=_new_id(), type="function", function=function)
            self._num_calls += 1
        return Delta(tool_calls=[call])


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbors of one kind as one; every name stays its own."""
    joined: list[Part] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind != "name":
            part = Part(part.kind, joined.pop().text + part.text)
        joined.append(part)
    return joined


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
