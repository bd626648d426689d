"""`Journal`: the file of a batch's answers, to which a line is added for each as it comes."""

from __future__ import annotations

import fcntl
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from atom_server.batches.lines import BadLine, BatchError, BatchLine


@dataclass(frozen=True)
class Answer:
    """What a route answered.

    Attributes:
        request_id: under which the server's log knows it.
        data: the body, which is JSON.
        retry_after: seconds after which it may be asked again, where the answer says so.
    """

    status: int
    request_id: str
    data: bytes
    retry_after: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """Why a line was not asked at all."""

    code: str
    message: str


class _Response(msgspec.Struct):
    status_code: int


class _Entry(msgspec.Struct):
    """What is read of a line that was written earlier."""

    custom_id: str | None
    response: _Response | None
    line: int | None = None


class Journal:
    """Answers in a file, one in each line. Opening it finds what an earlier process answered, however that ended.

    A line is written in one piece, so a process that is killed leaves whole lines and at most the beginning of one,
    which is cut off here. Lines may be added by several threads.

    Args:
        key: what a request is known again by: its name, or the number of its line, where the file of requests stays
            as it is and not every line has a name.

    Attributes:
        answered: the status of each answer that is there, by the key of its request; 0 where nothing was asked.

    Raises:
        BatchError: another process is writing to it, or a line in it is no answer of a batch.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, key: Literal["custom_id", "number"] = "custom_id") -> None:
        self._path = path
        self._key = key
        self._writing = threading.Lock()
        self._is_open = True
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
        self.close()

    def close(self) -> None:
        """Let go of the file, after the line that is being written. What comes later is not added."""
        with self._writing:
            if self._is_open:
                self._is_open = False
                os.close(self._file)

    @property
    def num_refused(self) -> int:
        """Answers that say what was wrong with their requests."""
        return sum(status >= 400 for status in self.answered.values())

    def add(self, line: BatchLine | BadLine, entry: bytes, status: int) -> None:
        """Write the `entry_of` a line.

        Raises:
            ValueError: the journal is closed.
            OSError: the disk is full, or gone. What was written of the line is cut off again.
        """
        data = memoryview(entry)
        with self._writing:
            if not self._is_open:
                raise ValueError(f"{self._path} is closed")
            size = os.fstat(self._file).st_size
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError:
                os.ftruncate(self._file, size)
                raise
            self.answered[getattr(line, self._key)] = status

    def _read(self) -> dict[str | int | None, int]:
        found: dict[str | int | None, int] = {}
        decode = msgspec.json.Decoder(_Entry).decode
        end = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break
                try:
                    entry = decode(text)
                    key = entry.line if self._key == "number" else entry.custom_id
                except msgspec.MsgspecError:
                    key = entry = None
                if key is None or entry is None:
                    raise BatchError(
                        f"{self._path}, line {number}, is no answer of a batch: give another file, or remove it"
                    )
                found[key] = 0 if entry.response is None else entry.response.status_code
                end += len(text)
        os.ftruncate(self._file, end)
        return found


def entry_of(line: BatchLine | BadLine, said: Answer | Refusal) -> bytes:
    """The line of a journal, in OpenAI's format."""
    response, error = None, None
    if isinstance(said, Refusal):
        error = {"code": said.code, "message": said.message}
    else:
        response = {"status_code": said.status, "request_id": said.request_id, "body": msgspec.Raw(said.data)}
    name = f"line-{line.number}" if line.custom_id is None else line.custom_id
    entry = {"id": f"batch_req_{name}", "custom_id": line.custom_id, "line": line.number}
    return msgspec.json.encode(entry | {"response": response, "error": error}) + b"\n"
