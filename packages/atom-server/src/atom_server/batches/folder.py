"""`BatchFolder`: files and batches on a disk. One server at a time has a folder; names in it are made here alone."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from atom_core.config import ConfigError
from atom_server.batches.objects import StoredBatch, StoredFile

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(file-|batch_)[0-9a-f]{32}")
_Stored = TypeVar("_Stored", StoredFile, StoredBatch)


class BatchFolder:
    """``files/ID.jsonl`` is what a file holds, ``files/ID.json`` and ``batches/ID.json`` say what it and a batch are.

    A description is replaced in one step, so that it is whole however a server ends. All methods wait for the disk.

    Raises:
        ConfigError: the folder cannot be made or written, or another server has it.
    """

    def __init__(self, path: Path) -> None:
        self._files, self._batches = path / "files", path / "batches"
        try:
            for folder in (self._files, self._batches):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--batch-folder: {path} cannot be written: {error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"--batch-folder: another server uses {path}: give each a folder of its own") from None

    def close(self) -> None:
        """Let another server have the folder."""
        os.close(self._lock)

    def load(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """What an earlier server left, the oldest first. Uploads that it had not finished are removed."""
        batches = [batch for path in self._batches.iterdir() if (batch := _read(path, StoredBatch))]
        files = [file for path in self._files.glob("*.json") if (file := _read(path, StoredFile))]
        known = {file.public.id for file in files}
        for batch in batches:
            known |= {batch.output_id, batch.error_id} if batch.public.is_open else set()
        for path in self._files.iterdir():
            if path.stem not in known and _NAME.fullmatch(path.stem):
                path.unlink()
        return sorted(files, key=_age), sorted(batches, key=_age)

    def content_path(self, file_id: str) -> Path:
        """Where the content of a file is.

        Raises:
            ValueError: that is no id of a file that was made here.
        """
        return self._files / f"{_checked(file_id)}.jsonl"

    def size(self, file_id: str) -> int:
        """Bytes of a file; 0 where there is none."""
        try:
            return self.content_path(file_id).stat().st_size
        except FileNotFoundError:
            return 0

    def keep_content(self, file_id: str, source: BinaryIO) -> None:
        """Copy what `source` holds.

        Raises:
            OSError: the disk is full, or gone. Nothing is left then.
        """
        path = self.content_path(file_id)
        try:
            with path.open("xb") as file:
                shutil.copyfileobj(source, file, 2**20)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def save(self, stored: StoredFile | StoredBatch) -> None:
        """Write the description of a file or a batch.

        Raises:
            OSError: the disk is full, or gone. The description stays as it was.
        """
        path = self._description(stored)
        fresh = path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(stored))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def remove(self, stored: StoredFile | StoredBatch) -> None:
        """Remove a file and its description, or the description of a batch."""
        self._description(stored).unlink(missing_ok=True)
        if isinstance(stored, StoredFile):
            self.remove_content(stored.public.id)

    def remove_content(self, file_id: str) -> None:
        """Remove a file that has no description."""
        self.content_path(file_id).unlink(missing_ok=True)

    def _description(self, stored: StoredFile | StoredBatch) -> Path:
        folder = self._files if isinstance(stored, StoredFile) else self._batches
        return folder / f"{_checked(stored.public.id)}.json"


def new_id(prefix: str) -> str:
    """A name that nobody can guess: "file-..." or "batch_..."."""
    return prefix + uuid.uuid4().hex


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no id of a file or batch that was made here")
    return name


def _age(stored: StoredFile | StoredBatch) -> tuple[int, str]:
    return stored.public.created_at, stored.public.id


def _read(path: Path, kind: type[_Stored]) -> _Stored | None:
    if path.suffix != ".json":
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        logger.error("%s says nothing of a file or batch, and is left alone: %s", path, error)
        return None
    return stored if stored.public.id == path.stem and _NAME.fullmatch(path.stem) else None
