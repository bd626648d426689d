"""`AnswerFiles`: the two files of a batch's answers, and what has been answered in them."""

from __future__ import annotations

from atom_server.batches.folder import BatchFolder
from atom_server.batches.journal import Answer, Journal, Refusal, entry_of
from atom_server.batches.lines import BadLine, BatchLine
from atom_server.batches.objects import StoredBatch
from atom_server.batches.room import Room


class AnswerFiles:
    """Answers go into one file; errors, and lines that are no requests, into the other one, as in OpenAI's batches.

    Opening them finds what an earlier server answered. All methods wait for the disk.

    Raises:
        BatchError, OSError: as `Journal`.
    """

    def __init__(self, folder: BatchFolder, batch: StoredBatch, room: Room) -> None:
        self._owner, self._room, self._counts = batch.owner, room, batch.public.request_counts
        self._output = Journal(folder.content_path(batch.output_id), "number")
        try:
            self._errors = Journal(folder.content_path(batch.error_id), "number")
        except BaseException:
            self._output.close()
            raise
        self._count()

    def __contains__(self, line: BatchLine | BadLine) -> bool:
        """Whether there is an answer to the line."""
        return line.number in self._output.answered or line.number in self._errors.answered

    def add(self, line: BatchLine | BadLine, said: Answer | Refusal) -> None:
        """Write the answer to a line.

        Raises:
            APIError: there is no room for it.
            OSError, ValueError: as `Journal.add`.
        """
        entry = entry_of(line, said)
        status = said.status if isinstance(said, Answer) else 0
        self._room.take(self._owner, len(entry))
        try:
            (self._output if 200 <= status < 300 else self._errors).add(line, entry, status)
        except BaseException:
            self._room.give_back(self._owner, len(entry))
            raise
        self._count()

    def close(self) -> None:
        """Let go of both."""
        self._output.close()
        self._errors.close()

    def _count(self) -> None:
        self._counts.completed, self._counts.failed = len(self._output.answered), len(self._errors.answered)
