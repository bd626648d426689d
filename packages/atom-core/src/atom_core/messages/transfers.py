"""Blocks on their way between the paged cache and other places: what a step says to copy, and what became of it."""

from __future__ import annotations

from typing import Literal

import msgspec


TransferKind = Literal["load", "write"]


class BlockCopy(msgspec.Struct, gc=False, frozen=True):
    """The contents of one block go from `source` to `target`: one is a block id, or both are places elsewhere.

    A place is a number that scheduler and worker agree on, and that only they know the meaning of.
    """

    source: int
    target: int


class Transfer(msgspec.Struct, frozen=True):
    """Copies that run beside steps, and whose end is reported.

    "load" goes from places to block ids, "write" from one place to another.
    """

    transfer_id: int
    kind: TransferKind
    copies: tuple[BlockCopy, ...]


class BlockTransfers(msgspec.Struct, frozen=True):
    """The part of a step that moves blocks. It is carried out before anything of the step is computed.

    Attributes:
        saves: copies from block ids to places. The step, and transfers that begin with it, may overwrite these blocks.
        begun: transfers that begin now, behind the saves.
        awaited: ids of all transfers whose results are not known yet, those of `begun` among them.
    """

    saves: tuple[BlockCopy, ...] = ()
    begun: tuple[Transfer, ...] = ()
    awaited: tuple[int, ...] = ()


class TransferResult(msgspec.Struct, gc=False, frozen=True):
    """A transfer has ended. Its first `num_done` copies are right; the one after them failed, if there is one."""

    transfer_id: int
    num_done: int
