"""Files and batches as clients see them, and who owns them; JSON on the disk has the same fields."""

from __future__ import annotations

import time
from typing import Any

import msgspec

OPEN = frozenset(("validating", "in_progress", "finalizing", "cancelling"))
"""Statuses of batches that have not ended."""


class FileObject(msgspec.Struct, kw_only=True):
    """A file, as OpenAI describes it."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int = msgspec.field(default_factory=lambda: int(time.time()))
    filename: str
    purpose: str
    status: str = "processed"


class RequestCounts(msgspec.Struct):
    """Lines of a batch: all, those that were answered, and those in the file of errors."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch, as OpenAI describes it. Times are seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: dict[str, Any] | None = None
    input_file_id: str
    completion_window: str = "24h"
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is still something to do."""
        return self.status in OPEN

    def become(self, status: str) -> None:
        """Go over to `status`, and note when."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))


class StoredFile(msgspec.Struct):
    """A file and the name of the key that it belongs to."""

    owner: str
    public: FileObject


class StoredBatch(msgspec.Struct):
    """A batch, the name of the key that it belongs to, and the files that its answers go to."""

    owner: str
    public: BatchObject
    output_id: str
    error_id: str
