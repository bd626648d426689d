"""`DiskPages`: pages in one file of a folder, each with a checksum that is kept in memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import numpy as np
import xxhash

_SUFFIX = ".kv-blocks"


class DiskPages:
    """A file that nobody else can read, locked while this process lives, and of no use after it.

    Files that ended processes left in the folder are removed. Pages are compared with what was written: one that
    anything has changed, cut or removed is not given out.

    Args:
        folder: where the file is made; made if it is not there.
        name: tells the file from those of other ranks and engines of this process.
        page_bytes: bytes of a page.
    """

    def __init__(self, folder: Path, name: str, page_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_left_over(folder)
        self.path = folder / f"{os.getpid()}-{name}-{os.urandom(4).hex()}{_SUFFIX}"
        self._page_bytes = page_bytes
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._checksums: dict[int, bytes] = {}

    def write(self, page: int, data: np.ndarray) -> None:
        """Write uint8 ``[page_bytes]``.

        Raises:
            OSError: it cannot be written.
        """
        self._checksums.pop(page, None)
        left, offset = data.data, page * self._page_bytes
        while left:
            count = os.pwrite(self._file, left, offset)
            left, offset = left[count:], offset + count
        self._checksums[page] = xxhash.xxh3_128_digest(data.data)

    def read(self, page: int, into: np.ndarray) -> bool:
        """Read a page into uint8 ``[page_bytes]``; False where it is not what was written."""
        try:
            count = os.preadv(self._file, [into.data], page * self._page_bytes)
        except OSError:
            return False
        return count == self._page_bytes and self._checksums.get(page) == xxhash.xxh3_128_digest(into.data)

    def close(self) -> None:
        """Remove the file."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def _remove_left_over(folder: Path) -> None:
    """Remove files whose processes have ended: nobody holds their locks."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)
