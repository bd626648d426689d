"""Log records as lines: each takes one line of limited length without control characters, whatever text it holds."""

from __future__ import annotations

import logging

MOST_CHARACTERS = 120
# Characters that a whole message may have, and a traceback.
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 4096, 65_536


def in_log(text: object, most: int = MOST_CHARACTERS) -> str:
    """What a client sent, as it may stand in a log line: cut short, and its unprintable characters escaped.

    Those are line breaks of any kind, control characters, and marks that turn the direction of writing.
    """
    text = str(text)
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return cut if cut.isprintable() else "".join(map(_printable, cut))


class LineFormatter(logging.Formatter):
    """Writes each record as one line, which nothing in its message can end or forge; tracebacks stand indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # the name is the library's
        """The line; `record.message` is what was logged."""
        record.message = in_log(record.message, _LONGEST_MESSAGE)
        return super().formatMessage(record)

    def formatException(self, exc_info) -> str:  # the name is the library's
        """A traceback: messages of exceptions may hold what a client sent, over several lines."""
        lines = super().formatException(exc_info)[-_LONGEST_TRACEBACK:].split("\n")
        return "\n".join("    " + in_log(line, _LONGEST_MESSAGE) for line in lines)


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
