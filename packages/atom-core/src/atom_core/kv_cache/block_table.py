"""`BlockTable`: the blocks of one request, and the names that its full blocks have in the prefix cache."""

from __future__ import annotations

# What comes before a block: the serial number of the cached block before it, or the salt before a first block.
Parent = int | str


class BlockTable:
    """Blocks of one request in order of their tokens. Groups of layers that cache differently will have one each.

    Attributes:
        block_ids: the table.
        hashes: names of the request's leading full blocks of tokens; they depend on tokens only and outlive `clear`.
        num_published: leading blocks that the prefix cache has been told of.
        parent: what the first unpublished block comes after.
    """

    __slots__ = ("block_ids", "hashes", "num_published", "parent", "salt")

    def __init__(self, salt: str = "") -> None:
        self.salt = salt
        self.block_ids: list[int] = []
        self.hashes: list[bytes] = []
        self.num_published = 0
        self.parent: Parent = salt

    def clear(self) -> None:
        """The blocks were given up."""
        self.block_ids = []
        self.num_published = 0
        self.parent = self.salt
