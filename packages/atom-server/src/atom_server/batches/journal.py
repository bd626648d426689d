"""`Journal`: the file of a batch's answers, to which a line is added for each as it comes."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from atom_server.batches.lines import BatchError

_PIECE = 1 << 20


class Journal:
    """Answers in a file, one in each line. Opening it finds what an earlier process answered, however that ended.

    A line is written in one piece, so a process that is killed leaves whole lines and at most the beginning of one,
    which is cut off here.

    Attributes:
        answered: the status of each answer that is there, by the name of its request.

    Raises:
        BatchError: another process is writing to it, or a line in it is no answer of a batch.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BatchError(f"another process is writing answers to {path}: give each batch a file") from None
            self.answered = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    @property
    def num_refused(self) -> int:
        """Answers that say what was wrong with their requests."""
        return sum(status >= 400 for status in self.answered.values())

    def add(self, custom_id: str, answer: dict[str, Any]) -> None:
        """Write the answer to a request.

        Raises:
            OSError: the disk is full, or gone. What was written of the line is cut off again.
        """
        line = json.dumps({"id": f"batch_req_{custom_id}", "custom_id": custom_id} | answer, ensure_ascii=False) + "\n"
        data = memoryview(line.encode())
        size = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise
        self.answered[custom_id] = answer["response"]["status_code"]

    def _read(self) -> dict[str, int]:
        found: dict[str, int] = {}
        end = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    answer = json.loads(line)
                    found[answer["custom_id"]] = int(answer["response"]["status_code"])
                except (ValueError, KeyError, TypeError):
                    raise BatchError(
                        f"{self._path}, line {number}, is no answer of a batch: give another file, or remove it"
                    ) from None
                end += len(line)
        os.ftruncate(self._file, end)
        return found
