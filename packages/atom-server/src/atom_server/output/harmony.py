"""`HarmonyParser`: the messages of GPT-OSS, each in a channel: analysis, commentary (calls, preambles) or final."""

from __future__ import annotations

import re
from typing import Literal

from atom_server.output.parts import Part, SteppingParser, as_parts, cut

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([\w.\-]+)")
_PREFIX = "functions."
# Around the reasoning; what comes after it is the header of the next message.
THINKING = (f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant")


class HarmonyParser(SteppingParser):
    """The prompt has begun the assistant's first message: what comes is the rest of its header.

    Analysis is reasoning. A message to ``functions.NAME`` is a call. Everything else is content.
    """

    def __init__(self) -> None:
        super().__init__("first header")
        self._kind: Literal["content", "reasoning", "arguments"] = "content"
        self._is_empty = True

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._state == "body" and self._kind == "reasoning"

    def finish(self) -> list[Part]:
        """What was held back. The stop token that closes a message is not in the text."""
        rest, self.rest = self.rest, ""
        if self._state == "body":
            return self._in_body(rest) + self._close()
        return as_parts("content", [rest]) if self._state == "first header" and CHANNEL not in rest else []

    def _step(self) -> list[Part]:
        if self._state == "body":
            return self._to_mark()
        if self._state == "between":
            _, self.rest, mark = cut(self.rest, START)
            self._state = "header" if mark else "between"
            return []
        if self._state == "first header" and not self._may_be_header():
            self._state, self._kind = "body", "content"
            return []
        return self._in_header()

    def _to_mark(self) -> list[Part]:
        text, self.rest, mark = cut(self.rest, *MARKS)
        parts = self._in_body(text)
        if mark in ("", MESSAGE, CONSTRAIN):
            return parts  # out of place, and no content
        if mark == CHANNEL:
            self.rest = CHANNEL + self.rest
        self._state = "header" if mark in (START, CHANNEL) else "between"
        return parts + self._close()

    def _may_be_header(self) -> bool:
        text = self.rest.lstrip()
        return any(text.startswith(begin) or begin.startswith(text) for begin in (CHANNEL, "to=", MESSAGE))

    def _in_header(self) -> list[Part]:
        header, found, rest = self.rest.partition(MESSAGE)
        if not found:
            return []
        self.rest, self._state, self._is_empty = rest, "body", True
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and recipient[1].startswith(_PREFIX):
            self._kind = "arguments"
            return [Part("name", recipient[1].removeprefix(_PREFIX))]
        self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"
        return []

    def _in_body(self, text: str) -> list[Part]:
        if self._kind == "arguments" and self._is_empty:
            text = text.lstrip()
        self._is_empty = self._is_empty and not text
        return [Part(self._kind, text)] if text else []

    def _close(self) -> list[Part]:
        return [Part("arguments", "{}")] if self._kind == "arguments" and self._is_empty else []
