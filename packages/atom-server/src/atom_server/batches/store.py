"""`BatchStore`: the files and batches of all keys, each of which sees its own alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from atom_server.batches.folder import BatchFolder, new_id
from atom_server.batches.objects import BatchObject, FileObject, StoredBatch, StoredFile
from atom_server.batches.room import Room
from atom_server.errors import APIError

MAX_FILES = 1000
"""Files of a key; those of answers come on top."""
MAX_OPEN_BATCHES = 16
"""Batches of a key that have not ended."""
MAX_BATCHES = 1000
"""Batches of a key; the oldest that ended makes room."""
WINDOW_S = 24 * 3600

_Stored = TypeVar("_Stored", StoredFile, StoredBatch)


class BatchStore:
    """Everything about files and batches but the answering. An id of another owner looks like one that never was.

    Its methods belong to the event loop; what waits for the disk does so in threads.

    Raises:
        ConfigError: as `BatchFolder`.
    """

    def __init__(self, path: Path, room: Room) -> None:
        self.folder = BatchFolder(path)
        self.room = room
        files, batches = self.folder.load()
        self._files = {file.public.id: file for file in files}
        self._batches = {batch.public.id: batch for batch in batches}
        self._saving = asyncio.Lock()
        for file in files:
            room.take(file.owner, file.public.bytes, is_there=True)
        for batch in self.open_batches():
            for file_id in (batch.output_id, batch.error_id):
                if file_id not in self._files:
                    room.take(batch.owner, self.folder.size(file_id), is_there=True)

    def close(self) -> None:
        """Let another server have the folder."""
        self.folder.close()

    def open_batches(self) -> list[StoredBatch]:
        """Those that have not ended, of all owners, the oldest first."""
        return [batch for batch in self._batches.values() if batch.public.is_open]

    def files(self, owner: str) -> list[FileObject]:
        """Those of an owner, the oldest first."""
        return [file.public for file in _of(owner, self._files.values())]

    def batches(self, owner: str) -> list[BatchObject]:
        """Those of an owner, the oldest first."""
        return [batch.public for batch in _of(owner, self._batches.values())]

    def file(self, file_id: str, owner: str) -> FileObject:
        """A file; APIError 404 where the owner has none of that id."""
        return _found(self._files, file_id, owner, "file").public

    def batch(self, batch_id: str, owner: str) -> StoredBatch:
        """A batch; APIError 404 where the owner has none of that id."""
        return _found(self._batches, batch_id, owner, "batch")

    def content_path(self, file_id: str, owner: str) -> Path:
        """Where a file is; APIError 404 where the owner has none of that id."""
        return self.folder.content_path(self.file(file_id, owner).id)

    async def add_file(self, owner: str, filename: str, content: BinaryIO, num_bytes: int) -> FileObject:
        """Keep a file of requests.

        Raises:
            APIError: 400 or 413; this owner has as many files as it may, or there is no room.
        """
        if sum(file.purpose == "batch" for file in self.files(owner)) >= MAX_FILES:
            message = f"this key has {MAX_FILES} files, which is the most: delete those that are not needed any more"
            raise APIError(400, message, code="too_many_files")
        file = FileObject(id=new_id("file-"), bytes=num_bytes, filename=filename, purpose="batch")
        stored = StoredFile(owner, file)
        self.room.take(owner, num_bytes)
        try:
            await asyncio.to_thread(self.folder.keep_content, file.id, content)
            await asyncio.to_thread(self.folder.save, stored)
        except BaseException:
            self.room.give_back(owner, num_bytes)
            raise
        self._files[file.id] = stored
        return file

    async def publish(self, batch: StoredBatch, file_id: str, what: str) -> str | None:
        """Let the owner see a file of answers: its id, or None where it is empty and goes."""
        if file_id in self._files:  # by a server that ended right after
            return file_id
        size = await asyncio.to_thread(self.folder.size, file_id)
        if not size:
            await asyncio.to_thread(self.folder.remove_content, file_id)
            return None
        name = f"{batch.public.id}_{what}.jsonl"
        stored = StoredFile(batch.owner, FileObject(id=file_id, bytes=size, filename=name, purpose="batch_output"))
        await asyncio.to_thread(self.folder.save, stored)
        self._files[file_id] = stored
        return file_id

    async def delete_file(self, file_id: str, owner: str) -> None:
        """Remove a file.

        Raises:
            APIError: 404, or 409 while a batch reads it.
        """
        stored = _found(self._files, file_id, owner, "file")
        for batch in self.open_batches():
            if file_id in (batch.public.input_file_id, batch.output_id, batch.error_id):
                message = f"{batch.public.id} uses this file: cancel it, or wait for its end"
                raise APIError(409, message, param="file_id", code="file_in_use")
        del self._files[file_id]
        await asyncio.to_thread(self.folder.remove, stored)
        self.room.give_back(owner, stored.public.bytes)

    async def add_batch(
        self, owner: str, input_file_id: str, endpoint: str, *, metadata: dict[str, str] | None
    ) -> StoredBatch:
        """Keep a new batch.

        Raises:
            APIError: 404 for a file that is not there, 429 where this owner has as many open ones as it may.
        """
        file = self.file(input_file_id, owner)
        if file.purpose != "batch":
            message = f"{input_file_id} holds answers; a batch reads a file that was uploaded with the purpose 'batch'"
            raise APIError(400, message, param="input_file_id")
        own = _of(owner, self._batches.values())
        if sum(batch.public.is_open for batch in own) >= MAX_OPEN_BATCHES:
            message = (
                f"{MAX_OPEN_BATCHES} batches of this key have not ended, which is the most: wait for one, or cancel"
            )
            raise APIError(429, message, code="too_many_batches", headers={"retry-after": "60"})
        now = int(time.time())
        batch = BatchObject(
            id=new_id("batch_"),
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=metadata,
        )
        stored = StoredBatch(owner, batch, new_id("file-"), new_id("file-"))
        self._batches[batch.id] = stored  # before anything is awaited, so that its file stays
        try:
            await self.save(stored)
        except BaseException:
            del self._batches[batch.id]
            raise
        ended = [other for other in own if not other.public.is_open]
        for other in ended[: max(len(own) + 1 - MAX_BATCHES, 0)]:
            del self._batches[other.public.id]
            await asyncio.to_thread(self.folder.remove, other)
        return stored

    async def save(self, batch: StoredBatch) -> None:
        """Write down how a batch stands."""
        await asyncio.shield(self._save(batch))  # two threads must not write one description

    async def _save(self, batch: StoredBatch) -> None:
        async with self._saving:
            await asyncio.to_thread(self.folder.save, batch)


def _of(owner: str, stored: Iterable[_Stored]) -> list[_Stored]:
    return [each for each in stored if each.owner == owner]


def _found(stored: dict[str, _Stored], given: str, owner: str, what: str) -> _Stored:
    found = stored.get(given)
    if found is None or found.owner != owner:
        message = f"there is no {what} {given[:128]!r}: it never was, or was deleted"
        raise APIError(404, message, param=f"{what}_id", code=f"{what}_not_found")
    return found
