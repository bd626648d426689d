"""Splits a body of server-sent events into what its `data:` lines hold."""

from __future__ import annotations

from collections.abc import Iterator

END = b"[DONE]"


class EventLines:
    """Keeps what comes until its line is whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each event line that `data` completes, but not the mark of the stream's end."""
        *lines, self._rest = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        for line in lines:
            # A space behind the colon is left to the parser: some servers write none.
            if line.startswith(b"data:") and (event := line[5:].strip()) != END:
                yield event

    def end(self) -> bytes:
        """What is left at the end: an answer that is no stream of events, or a last line without an end."""
        rest, self._rest = self._rest, b""
        return rest
