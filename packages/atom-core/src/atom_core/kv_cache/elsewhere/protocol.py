"""`BlocksElsewhere`: which blocks can be had from outside the paged cache, and what steps are to copy for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from atom_core.messages import BlockTransfers, OffloadStats, TransferResult


class BlockKey(NamedTuple):
    """A block's contents: those of one group of layers for the tokens up to the end of the block that `name` says.

    Nothing but the name is compared, so names must be of a hash without collisions. `is_followed` says that they have
    what a model that drafts keeps too.
    """

    name: bytes
    group: int
    is_followed: bool = True


class FinishedLoad(NamedTuple):
    """A load has ended, and its blocks hold what was asked for if `is_right`."""

    load_id: int
    is_right: bool


class FindableBlocks(Protocol):
    """Blocks that can be loaded, as the prefix cache looks for them."""

    def __contains__(self, key: BlockKey) -> bool:
        """Whether the contents can be loaded."""
        ...

    def leads_on(self, name: bytes) -> bool:
        """Whether blocks behind this one can be loaded, although nobody needs it itself: windows have passed it."""
        ...


class BlocksElsewhere(FindableBlocks, Protocol):
    """The scheduler decides by it; what it decides goes to workers as the `transfers` of a step.

    A load takes two calls, since the blocks that it fills are found by evicting others, whose contents are saved:
    what is loaded must not make room for these.
    """

    def save(self, key: BlockKey, block_id: int) -> bool:
        """A block is about to store something else; False where its contents will be nowhere."""
        ...

    def hold(self, keys: Sequence[BlockKey]) -> int:
        """Keep contents until they are loaded; the id of that load."""
        ...

    def load(self, load_id: int, block_ids: Sequence[int]) -> None:
        """Load what is held into these blocks, which nobody else may use until the load has finished."""
        ...

    def take_transfers(self) -> BlockTransfers | None:
        """What the next step is told, once; None where it has nothing to do or to report."""
        ...

    def take_results(self, results: Sequence[TransferResult]) -> list[FinishedLoad]:
        """A step has reported transfers; those that were known to have ended are passed over."""
        ...

    def forget(self) -> None:
        """Nothing that was saved so far is found any more, and loads on their way count as failed."""
        ...

    def stats(self) -> OffloadStats | None:
        """Counts for people; None where it has none."""
        ...
