"""``<think>...</think>``: what the model thinks, apart from what it says."""

from __future__ import annotations

from atom_server.output.parts import Parser, Part, as_parts, cut

# The format's name -> what begins and what ends the reasoning.
MARKERS = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "gemma": ("<|channel>thought\n", "<channel|>"),
}


class ReasoningParser:
    """Text outside goes to `inner`, or is content. `is_open`: the prompt has begun the reasoning already."""

    def __init__(self, begin: str, end: str, inner: Parser | None, *, is_open: bool = False) -> None:
        self._begin, self._end = begin, end
        self._inner = inner
        self._state = "reasoning" if is_open else "start"
        self._rest = ""
        self._strip = True

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._state == "reasoning"

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        self._rest += text
        if self._state == "start":
            stripped = self._rest.lstrip()
            if stripped.startswith(self._begin):
                self._state, self._rest = "reasoning", stripped.removeprefix(self._begin)
            elif self._begin.startswith(stripped):
                return []
            else:
                self._state, self._strip = "outside", False
        parts: list[Part] = []
        if self._state == "reasoning":
            before, self._rest, mark = cut(self._without_space(self._rest), self._end)
            parts = as_parts("reasoning", [before])
            if not mark:
                return parts
            self._state, self._strip = "outside", True
        text, self._rest = self._without_space(self._rest), ""
        return parts + (self._inner.feed(text) if self._inner else as_parts("content", [text]))

    def finish(self) -> list[Part]:
        """Return the parts that were held back."""
        rest, self._rest = self._rest, ""
        if self._state == "reasoning":
            return as_parts("reasoning", [rest])
        if self._inner is None:
            return as_parts("content", [rest])
        return self._inner.feed(rest) + self._inner.finish()

    def _without_space(self, text: str) -> str:
        """Templates write line breaks around the reasoning, which belong to neither side."""
        if self._strip:
            text = text.lstrip()
            self._strip = not text
        return text
