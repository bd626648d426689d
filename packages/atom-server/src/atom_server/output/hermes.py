"""Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, among text."""

from __future__ import annotations

from atom_server.output.call_object import CallObject
from atom_server.output.parts import Part, as_parts, cut

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser:
    """A call that does not parse is left out from where it breaks."""

    def __init__(self) -> None:
        self._rest = ""
        self._call: CallObject | None = None
        self._after = False

    def feed(self, text: str) -> list[Part]:
        """What is certain now."""
        self._rest += text
        parts: list[Part] = []
        while self._rest:
            if self._call is not None:
                parts += self._in_call(self._call)
                continue
            before, self._rest, found = cut(self._rest, END if self._after else BEGIN)
            if not self._after:
                parts += as_parts("content", [before])
            if not found:
                break
            self._call, self._after = None if self._after else CallObject(), False
        return parts

    def finish(self) -> list[Part]:
        """What was held back."""
        rest, self._rest = self._rest, ""
        return [] if self._after or self._call is not None else as_parts("content", [rest])

    def _in_call(self, call: CallObject) -> list[Part]:
        parts: list[Part] = []
        for position, character in enumerate(self._rest):
            try:
                parts += call.feed(character)
            except ValueError:
                call.done = True
            if call.done:
                self._call, self._after, self._rest = None, True, self._rest[position:].removeprefix("}")
                return parts
        self._rest = ""
        return parts
