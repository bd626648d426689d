"""From parsed output to messages, and to the deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from atom_server.generation.reply_reader import ReplyReader, read_whole
from atom_server.output.parts import Part, assemble
from atom_server.schemas.answers import Delta, FunctionCall, Message, ToolCall


def message_of(reader: ReplyReader, pieces: Iterable[tuple[str, int]]) -> Message:
    """The message that the parts of a whole reply make."""
    whole = assemble(read_whole(reader, pieces))
    calls = [
        ToolCall(id=reader.call_ids(name, number), type="function", function=FunctionCall(name, arguments))
        for number, (name, arguments) in enumerate(whole.calls)
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

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader
        self._num_calls = 0

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    @property
    def num_reasoning_tokens(self) -> int:
        """How many of the tokens so far were reasoning."""
        return self._reader.num_reasoning_tokens

    def deltas(self, text: str, num_tokens: int, finished: bool, always: bool) -> list[Delta]:
        """The deltas of new parts; with `always` at least one, for something that is sent along."""
        deltas = [self._delta(part) for part in self._reader.take(text, num_tokens, finished=finished)]
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
            call_id = self._reader.call_ids(part.text, self._num_calls)
            call = ToolCall(index=self._num_calls, id=call_id, type="function", function=function)
            self._num_calls += 1
        return Delta(tool_calls=[call])
