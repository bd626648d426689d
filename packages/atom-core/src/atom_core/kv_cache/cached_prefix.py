"""`CachedPrefix`: all tokens up to the end of one full block, and where its keys and values are."""

from __future__ import annotations


class CachedPrefix:
    """All tokens up to the end of one full block.

    A cache has as many as blocks, and the garbage collector stops the engine to go through them. So they hold nothing
    that it goes through, too; they stay its own, since it frees chains of any length without a recursion.

    Attributes:
        hash: the name of the block.
        parent: the prefix before the block, or the salt before a first block.
        covered: what the block's name covers, see `BlockNames.extend`.
        block_ids: each group's block that stores its keys and values, or the snapshot of the state behind it; None
            where none does.
        is_followed: these blocks also have what a model that drafts keeps.
        num_children: prefixes that are known to go on from here.
        is_known: it was not forgotten.
        is_orphan: a prefix before it was forgotten when it came, so that nobody finds it.
    """

    __slots__ = ("block_ids", "covered", "hash", "is_followed", "is_known", "is_orphan", "num_children", "parent")

    def __init__(
        self,
        name: bytes,
        parent: CachedPrefix | str,
        covered: bytes,
        block_ids: tuple[int | None, ...],
        *,
        is_followed: bool,
    ) -> None:
        self.hash = name
        self.parent = parent
        self.covered = covered
        self.block_ids = block_ids
        self.is_followed = is_followed
        self.num_children = 0
        self.is_known = True
        self.is_orphan = isinstance(parent, CachedPrefix) and (parent.is_orphan or not parent.is_known)

    @property
    def has_blocks(self) -> bool:
        """Whether a group has a block."""
        return self.block_ids.count(None) < len(self.block_ids)

    def set_block(self, group: int, block_id: int | None) -> None:
        """The group has another block, or none."""
        block_ids = [*self.block_ids]
        block_ids[group] = block_id
        self.block_ids = tuple(block_ids)
