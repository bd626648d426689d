"""Blocks on their way between the paged cache and other places: what a step says to copy, and what became of it."""

from __future__ import annotations

from typing import Literal

import msgspec

TransferKind = Literal["load", "write", "fetch", "send"]


class BlockCopy(msgspec.Struct, gc=False, frozen=True):
    """The contents of one block go from `source` to `target`: one is a block id, or both are places elsewhere.

    A place is a number that scheduler and worker agree on, and that only they know the meaning of. Among the blocks of
    a prompt at a peer it is the block's position.
    """

    source: int
    target: int


class PeerPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Blocks of one prompt that an engine keeps for another one.

    Attributes:
        engine_id: the engine that keeps them.
        key: the prompt's name there, which nobody can guess.
        digest: a hash of its tokens, as far as the blocks go.
        host, port: where its first rank sends from; the other ranks have the ports behind it.
    """

    engine_id: str
    key: str
    digest: bytes
    host: str = ""
    port: int = 0


class Transfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Copies that run beside steps, and whose end is reported.

    "load" goes from places to block ids, "write" from one place to another. "fetch" goes from positions of a prompt at
    a peer to block ids; without copies it says that nothing is needed. "send" offers places under their positions to a
    peer, and has ended when that one has them or has not come in time.
    """

    transfer_id: int
    kind: TransferKind
    copies: tuple[BlockCopy, ...]
    prompt: PeerPrompt | None = None


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

    def __add__(self, other: BlockTransfers) -> BlockTransfers:
        """Both of them."""
        return BlockTransfers(self.saves + other.saves, self.begun + other.begun, self.awaited + other.awaited)


class TransferResult(msgspec.Struct, gc=False, frozen=True):
    """A transfer has ended. Its first `num_done` copies are right; the one after them failed, if there is one."""

    transfer_id: int
    num_done: int
