"""`NamedAdapter`: an adapter as it was loaded once. Torch-free, crosses processes."""

from __future__ import annotations

import msgspec


class NamedAdapter(msgspec.Struct, frozen=True):
    """What callers, engines and workers know of an adapter.

    Attributes:
        id: its number, above 0; one that is loaded again has another.
        name: what requests call it.
        folder: where it is read.
        created: when it was asked for, by `time.time`.
        task: the folder is the checkpoint's, among whose weights is an adapter for this task; None for one that lies
            in its folder alone.
    """

    id: int
    name: str
    folder: str
    created: float
    task: str | None = None
