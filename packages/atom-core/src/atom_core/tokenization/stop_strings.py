"""`StopStringMatcher`: finds stop strings in text as it grows, across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Passes text on, and ends at the first stop string.

    Only text that might be the beginning of a stop string is held back.

    Attributes:
        matched: the stop string that ended the text; None while there is none.
    """

    def __init__(self, stop_strings: Sequence[str], *, include_stop_string: bool = False) -> None:
        self._stop_strings = [text for text in stop_strings if text]
        self._longest = max(map(len, self._stop_strings), default=0)
        self._include = include_stop_string
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Take new text, give what may be shown. After a match nothing more comes."""
        if self.matched is not None or not text:
            return ""
        if not self._stop_strings:
            return text
        text = self._held + text
        found = [(at, -len(stop), stop) for stop in self._stop_strings if (at := text.find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)  # the earliest; of several there, the longest
            self._held = ""
            return text[: at + len(self.matched)] if self._include else text[:at]
        keep = self._possible_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once nothing more will come."""
        held, self._held = self._held, ""
        return held

    def skip(self, text: str) -> str:
        """Take text in which stop strings do not count (before `min_tokens`)."""
        held, self._held = self._held, ""
        return held + text

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
