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
        # Leading characters of `_held` at which no stop string may end.
        self._num_skipped = 0
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Take new text, give what may be shown. After a match nothing more comes."""
        if self.matched is not None or not text:
            return ""
        if not self._stop_strings:
            return text
        text = self._held + text
        places = ((text.find(stop, max(0, self._num_skipped - len(stop) + 1)), stop) for stop in self._stop_strings)
        found = [(at, -len(stop), stop) for at, stop in places if at >= 0]
        if found:
            at, _, self.matched = min(found)  # the earliest; of several there, the longest
            self._held = ""
            return text[: at + len(self.matched)] if self._include else text[:at]
        shown = self._hold_back(text)
        self._num_skipped = max(0, self._num_skipped - len(shown))
        return shown

    def flush(self) -> str:
        """What was held back, once nothing more will come."""
        held, self._held = self._held, ""
        return held

    def skip(self, text: str) -> str:
        """Take text in which no stop string may end (within `min_tokens`); one may begin there and end later."""
        shown = self._hold_back(self._held + text)
        self._num_skipped = len(self._held)
        return shown

    def _hold_back(self, text: str) -> str:
        """Hold back the end of `text` that may begin a stop string; what comes before it may be shown."""
        keep = self._possible_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
