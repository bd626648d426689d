"""`KVCacheConfig`: the numbers of the cache that scheduling needs."""

from __future__ import annotations

from math import lcm
from typing import Literal

import msgspec

from atom_kernels.protocols import GroupSpec, Pages

PrefixHash = Literal["xxhash64", "sha256"]


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The cache as the scheduler sees it.

    Attributes:
        num_blocks: blocks in the pool, which all groups draw from; their ids are ``0 .. num_blocks - 1``.
        block_size: tokens in a block.
        enable_prefix_caching: share full blocks between requests whose tokens begin alike.
        prefix_hash: "xxhash64" (fast) or "sha256" with a random key for each process (names cannot be guessed).
        groups: what each group of layers keeps.
        names_cover_next: a block's name covers the token after it, on which what is cached of its last token depends.
        num_slots: slots for the states of requests, each of which holds `slots_each`; 0 where no group keeps states.
        num_snapshots: further slots, for states behind cached prefixes.
        tells_events: record what becomes of cached blocks (see `PagedCache.take_events`).

    Raises:
        ValueError: a number below 1, no group, or an unknown hash.
    """

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool = True
    prefix_hash: PrefixHash = "xxhash64"
    groups: tuple[GroupSpec, ...] = (Pages(),)
    names_cover_next: bool = False
    num_slots: int = 0
    num_snapshots: int = 0
    tells_events: bool = False

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.prefix_hash not in ("xxhash64", "sha256"):
            raise ValueError(f"prefix_hash is {self.prefix_hash!r}; allowed are 'xxhash64' and 'sha256'")
        if not self.groups:
            raise ValueError("groups are empty; give what each group of layers keeps")
        if self.has_slots and self.num_slots < self.slots_each:
            raise ValueError(
                f"num_slots is {self.num_slots}; a group that keeps states needs at least {self.slots_each}"
            )
        if len({group.slots_each for group in self.groups if group.in_slots}) > 1:
            raise ValueError("groups that keep states hold different numbers of slots; a request has the same in all")
        if self.has_slots and self.enable_prefix_caching and self.num_snapshots < 1:
            raise ValueError(
                f"num_snapshots is {self.num_snapshots}; to find prefixes, a group that keeps states needs at least 1: "
                "give some, or set enable_prefix_caching to false"
            )

    @property
    def hand_over(self) -> int:
        """Steps that end before their requests' tokens do should end at multiples of so many tokens."""
        return lcm(*(group.hand_over for group in self.groups))

    @property
    def slots_each(self) -> int:
        """Slots that a request holds."""
        return max(group.slots_each for group in self.groups)

    @property
    def has_slots(self) -> bool:
        """Whether a group keeps one state a request."""
        return any(group.in_slots for group in self.groups)
