"""`PrefixCache`: finds cached blocks by the tokens from the beginning up to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atom_core.kv_cache.block_table import BlockTable, Parent
from atom_core.kv_cache.hashing import BlockHasher, pack_token_ids


class CachedBlock(NamedTuple):
    """A full block whose keys and values are those of `token_ids` after `parent`."""

    block_id: int
    serial: int
    hash: bytes
    parent: Parent
    token_ids: list[int]


class PrefixCache:
    """Hash chains over full blocks.

    A hash only finds a candidate: token ids and the block before it are compared too, the latter by a serial number
    that is never used twice (an id would be). So equal hashes of different prefixes never share a block.
    `on_change(block_id, is_cached)` is told of a block that was published, or that lost its name to another.
    """

    def __init__(self, block_size: int, hasher: BlockHasher, on_change: Callable[[int, bool], None]) -> None:
        self._block_size = block_size
        self._hasher = hasher
        self._on_change = on_change
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._next_serial = 0

    def __len__(self) -> int:
        return len(self._by_block)

    def find(self, table: BlockTable, token_ids: list[int], max_blocks: int) -> list[CachedBlock]:
        """The longest cached prefix of `token_ids`, at most `max_blocks` blocks."""
        found: list[CachedBlock] = []
        parent: Parent = table.salt
        while len(found) < max_blocks:
            cached = self._lookup(table, token_ids, len(found), parent)
            if cached is None:
                break
            found.append(cached)
            parent = cached.serial
        return found

    def publish(self, table: BlockTable, token_ids: list[int], num_blocks: int) -> None:
        """Make the table's first `num_blocks` blocks, all computed, findable.

        A block whose content is cached already, in another one, stays private.
        """
        for index in range(table.num_published, num_blocks):
            cached = self._lookup(table, token_ids, index, table.parent)
            if cached is None:
                cached = self._register(table, token_ids, index)
            table.parent = cached.serial
            table.num_published = index + 1

    def adopt(self, table: BlockTable, found: list[CachedBlock]) -> None:
        """The empty table takes over the blocks that `find` found."""
        table.block_ids = [cached.block_id for cached in found]
        table.num_published = len(found)
        table.parent = found[-1].serial if found else table.salt

    def forget(self, block_id: int) -> None:
        """The block is about to store something else."""
        cached = self._by_block.pop(block_id)
        del self._by_hash[cached.hash]

    def _lookup(self, table: BlockTable, token_ids: list[int], index: int, parent: Parent) -> CachedBlock | None:
        cached = self._by_hash.get(self._hash(table, token_ids, index))
        if cached is None or cached.parent != parent or cached.token_ids != self._tokens(token_ids, index):
            return None
        return cached

    def _register(self, table: BlockTable, token_ids: list[int], index: int) -> CachedBlock:
        name = self._hash(table, token_ids, index)
        replaced = self._by_hash.get(name)
        if replaced is not None:
            del self._by_block[replaced.block_id]
            self._on_change(replaced.block_id, False)
        cached = CachedBlock(
            block_id=table.block_ids[index],
            serial=self._next_serial,
            hash=name,
            parent=table.parent,
            token_ids=self._tokens(token_ids, index),
        )
        self._next_serial += 1
        self._by_hash[name] = self._by_block[cached.block_id] = cached
        self._on_change(cached.block_id, True)
        return cached

    def _hash(self, table: BlockTable, token_ids: list[int], index: int) -> bytes:
        hashes = table.hashes
        while len(hashes) <= index:
            prefix = hashes[-1] if hashes else self._salted(table.salt)
            hashes.append(self._hasher(prefix, pack_token_ids(self._tokens(token_ids, len(hashes)))))
        return hashes[index]

    def _salted(self, salt: str) -> bytes:
        return self._hasher(b"", salt.encode(errors="surrogatepass")) if salt else b""

    def _tokens(self, token_ids: list[int], index: int) -> list[int]:
        return token_ids[index * self._block_size : (index + 1) * self._block_size]
