"""`RequestFile`: a line of JSON for each request that has ended, for programs that read logs. Never any text."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any

import msgspec

from atom_core.config import ConfigError
from atom_core.log_lines import in_log
from atom_core.seldom import SeldomWarning
from atom_server.request_log import RequestRecord

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"


class RequestFile:
    """Appends to a file or to standard output. The file may be moved away at any time: then a new one is begun.

    On a full disk lines are lost, and the server goes on. The log says so, at most once a minute.

    Args:
        target: the file's path, or `STANDARD_OUTPUT`.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._warn = SeldomWarning(logger)
        try:
            self._handler = _StandardOutput() if target == STANDARD_OUTPUT else _File(target, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"request_log {target!r} cannot be written: {error}") from None

    def __enter__(self) -> RequestFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: RequestRecord) -> None:
        """Append the line of a request that has ended."""
        line = msgspec.json.encode(_fields(record)).decode()
        try:
            self._handler.emit(logging.makeLogRecord({"msg": line}))
        except (OSError, ValueError) as error:  # closed files raise the latter
            self._warn(
                f"requests are missing from {self._target} (--request-log): {error}; make it writable, or room for it: "
                "lines are written again from then on"
            )

    def close(self) -> None:
        """Close the file; what could not be written until now is lost."""
        if isinstance(self._handler, _File):
            with contextlib.suppress(OSError):
                self._handler.close()


class _Raises(logging.Handler):
    """A handler that lets its caller know of errors."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is the library's
        """Raise what is being handled."""
        raise


class _File(_Raises, WatchedFileHandler):
    pass


class _StandardOutput(_Raises, logging.StreamHandler[Any]):
    def __init__(self) -> None:
        super().__init__(sys.stdout)


def _fields(record: RequestRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "key": record.key,
        "method": in_log(record.method),
        "path": in_log(record.path),
        "status": record.status,
        "seconds": round(time.monotonic() - record.begun, 6),
    }
    if record.answer_id is not None:
        fields |= {
            "answer_id": record.answer_id,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "queued_s": round(record.queued, 6),
            "ttft_s": record.ttft,
            "tpot_s": record.tpot,
            "finish_reasons": record.finish_reasons,
        }
    return fields
