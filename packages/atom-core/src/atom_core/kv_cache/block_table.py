"""`BlockTable`: the blocks of one request in every group of layers, and the names of its full blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atom_core.kv_cache.slot_pool import NO_SLOT
from atom_core.messages import PlacedImage

if TYPE_CHECKING:
    from atom_core.kv_cache.cached_prefix import CachedPrefix
    from atom_core.kv_cache.elsewhere.at_peer import PromptAtPeer

# Stands in a table where a group has no block any more, or never had one, because its window has passed.
NO_BLOCK = 0


class BlockTable:
    """Blocks of one request in order of their tokens, for each group of layers.

    Attributes:
        groups: block ids by group. Entries before `first_held` of a group are `NO_BLOCK`, or blocks given up.
        first_held: how many leading blocks of each group lie behind the window and are not held.
        capacity: tokens for which every group has blocks.
        has_new_blocks: there are blocks that `take_new_blocks` has not shown.
        images: the pictures of the prompt, in order.
        hashes: names of the request's leading full blocks; tokens and pictures make them, and they outlive `clear`.
        covered: what each of these names covers, see `BlockNames.extend`.
        num_followed_tokens: leading tokens of which the blocks also have what a model that drafts keeps. Where more
            were computed there is a gap, which is never filled.
        num_published: leading blocks that the prefix cache has been told of.
        slot: the first that the request has in groups that keep states; `NO_SLOT` without.
        snapshots: states that steps in flight leave for the prefix cache, by index of the block that ends there.
        parent: what the first unpublished block comes after: a cached prefix, or the salt.
        load_id: the load that fills some of the blocks; None where none is on its way.
        at_peer: what another engine has of the prompt; None where that is nothing, or is not needed any more. It
            outlives `clear`.
    """

    __slots__ = (
        "_num_shown",
        "at_peer",
        "capacity",
        "covered",
        "first_held",
        "groups",
        "has_new_blocks",
        "hashes",
        "images",
        "load_id",
        "num_followed_tokens",
        "num_published",
        "parent",
        "salt",
        "slot",
        "snapshots",
    )

    def __init__(self, salt: str = "", num_groups: int = 1, images: Sequence[PlacedImage] = ()) -> None:
        self.salt, self.images = salt, images
        self.hashes: list[bytes] = []
        self.covered: list[bytes] = []
        self.at_peer: PromptAtPeer | None = None
        self.groups: list[list[int]] = [[] for _ in range(num_groups)]
        self.clear()

    def hold_slot(self, slot: int, groups: Sequence[int]) -> None:
        """The request has slots in these groups: the first is told as their only entry, and is no block."""
        self.slot = slot
        for group in groups:
            self.groups[group] = [slot]
            self.first_held[group] = 1

    @property
    def block_ids(self) -> list[int]:
        """The table of the first group."""
        return self.groups[0]

    @property
    def num_held(self) -> int:
        """Blocks held in all groups."""
        return sum(map(len, self.groups)) - sum(self.first_held)

    def held(self) -> list[int]:
        """The blocks held in all groups."""
        if len(self.groups) == 1 and not self.first_held[0]:
            return self.groups[0]
        return [i for block_ids, first in zip(self.groups, self.first_held, strict=True) for i in block_ids[first:]]

    def take_new_blocks(self) -> list[list[int]]:
        """Blocks that were added to each group since the last call."""
        self.has_new_blocks = False
        shown, self._num_shown = self._num_shown, [*map(len, self.groups)]
        return [block_ids[first:] for block_ids, first in zip(self.groups, shown, strict=True)]

    def clear(self) -> None:
        """The blocks were given up."""
        num_groups = len(self.groups)
        self.groups = [[] for _ in range(num_groups)]
        self.first_held = [0] * num_groups
        self._num_shown = [0] * num_groups
        self.capacity = 0
        self.slot = NO_SLOT
        self.snapshots: dict[int, int] = {}
        self.has_new_blocks = False
        self.num_followed_tokens = 0
        self.num_published = 0
        self.parent: CachedPrefix | str = self.salt
        self.load_id: int | None = None
