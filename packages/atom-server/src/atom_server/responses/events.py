"""`ResponseEvents`: what the stream of a response tells, kept so that it can be read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom_core import RequestOutput
from atom_server.answers.streaming import EventWriter
from atom_server.errors import APIError
from atom_server.generation.generation import Generation
from atom_server.responses.event_log import EventLog
from atom_server.responses.writer import ResponseWriter


class ResponseEvents(EventWriter):
    """Writes every event of a stream.

    Args:
        log: gets them too; None keeps nothing.
        on_end: called with the response as it ended, before the last events are told.
        on_close: called once nothing more is told.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        generation: Generation,
        log: EventLog | None,
        *,
        on_end: Callable[[dict[str, Any]], None],
        on_close: Callable[[], None],
    ) -> None:
        self._writer, self._generation, self._log = writer, generation, log
        self._on_end, self._on_close = on_end, on_close
        self._reason: str | None = None

    def begin(self) -> bytes:
        return self._kept(self._writer.begin())

    def take(self, index: int, output: RequestOutput) -> bytes:
        self._reason = output.finish_reason
        return self._kept(self._writer.take(output.text_delta, len(output.output_tokens), output.logprobs or ()))

    def end(self) -> bytes:
        data, response = self._writer.finish(self._reason, self._generation)
        self._on_end(response)
        return self._kept(data + self._writer.ended(response))

    def fail(self, error: APIError) -> bytes:
        failed = self._writer.unfinished("failed", error)
        self._on_end(failed)
        return self._kept(self._writer.ended(failed))

    def close(self) -> None:
        self._on_close()

    def _kept(self, data: bytes) -> bytes:
        if self._log is not None and data:
            self._log.append(data)
        return data
