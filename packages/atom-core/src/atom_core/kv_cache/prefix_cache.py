"""`PrefixCache`: finds cached blocks by the tokens and pictures from the beginning up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from atom_core.kv_cache.block_table import NO_BLOCK, BlockTable
from atom_core.kv_cache.cached_prefix import CachedPrefix
from atom_core.kv_cache.elsewhere.loads import ELSEWHERE
from atom_core.kv_cache.elsewhere.protocol import BlockKey, FindableBlocks
from atom_core.kv_cache.hashing import BlockHasher, BlockNames
from atom_core.kv_events.recorder import KVEventRecorder
from atom_kernels.protocols import GroupSpec, Pages

# Names that are made at a time while blocks are looked for: a long prompt whose first is not known needs no others yet.
_NAMED_AT_A_TIME = 256


class FoundBlocks(NamedTuple):
    """The blocks at one index, by group: ids, `ELSEWHERE`, or None. `prefix` is None where none of them is cached.

    `is_followed` says that all of them have what a model that drafts keeps.
    """

    prefix: CachedPrefix | None
    block_ids: Sequence[int | None]
    is_followed: bool


class Hit(NamedTuple):
    """A prefix that every group can serve: its blocks, and by group the index of the first one that is needed."""

    found: list[FoundBlocks]
    first_needed: list[int]

    @property
    def num_followed(self) -> int:
        """Leading blocks that a model that drafts has followed."""
        return sum(1 for _ in takewhile(lambda blocks: blocks.is_followed, self.found))

    def block_ids(self, group: int) -> list[int]:
        """The blocks that a request takes over in this group, with `ELSEWHERE` for those that it has to load."""
        needed = self.found[self.first_needed[group] :]
        return [block_id for blocks in needed if (block_id := blocks.block_ids[group]) is not None]


class PrefixCache:
    """Hash chains over full blocks, as a tree: each prefix knows the one before it.

    A hash only finds a candidate: what it covers and the prefix before are compared too, so equal hashes of different
    prefixes never share a block. A group that keeps all needs all blocks of a prefix, one that does not only the last;
    one that keeps states has snapshots in the place of blocks. A prefix is forgotten once it has neither blocks nor
    prefixes after it. With `names_cover_next` a block's tokens are its own and the one after it: it has no name before
    that one is known, and serves nobody who goes on with another.
    `on_change(block_id, is_cached)` is told of a block that was published, or that lost its name, and `events` in words
    for others.
    """

    def __init__(
        self,
        block_size: int,
        hasher: BlockHasher,
        on_change: Callable[[int, bool], None],
        groups: Sequence[GroupSpec] = (Pages(),),
        *,
        names_cover_next: bool = False,
        events: KVEventRecorder | None = None,
    ) -> None:
        self._events = events
        self._block_size = block_size
        self._num_next = int(names_cover_next)
        self._names = BlockNames(hasher, block_size, names_cover_next=names_cover_next)
        self._on_change = on_change
        self._groups = tuple(groups)
        self._in_blocks = [index for index, spec in enumerate(self._groups) if not spec.in_slots]
        self._keeps_all = all(group.keeps_all for group in groups)
        self._by_hash: dict[bytes, CachedPrefix] = {}
        self._by_block: dict[int, CachedPrefix] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def num_nameable(self, num_computed_tokens: int, num_known_tokens: int) -> int:
        """Leading blocks that have a name, of a request with so many tokens computed, and so many ids known."""
        return min(num_computed_tokens, num_known_tokens - self._num_next) // self._block_size

    def name_blocks(self, table: BlockTable, token_ids: list[int], num_blocks: int) -> list[bytes]:
        """The names of the leading `num_blocks` full blocks of a table with these tokens."""
        table.covered += self._names.extend(table.hashes, token_ids, num_blocks, salt=table.salt, images=table.images)
        return table.hashes[:num_blocks]

    def find(
        self, table: BlockTable, token_ids: list[int], max_blocks: int, *, elsewhere: FindableBlocks | None = None
    ) -> Hit:
        """The longest prefix of `token_ids` that every group can serve, at most `max_blocks` blocks.

        Args:
            elsewhere: blocks that can be loaded.
        """
        found: list[FoundBlocks] = []
        parent: CachedPrefix | str | None = table.salt
        for name, covered in self._names_in_turn(table, token_ids, max_blocks):
            parent = prefix = None if parent is None else self._known(name, parent, covered)
            block_ids, is_followed = _of_prefix(prefix, len(self._groups))
            if elsewhere is not None and None in block_ids:
                block_ids, is_elsewhere_too = _with_elsewhere(block_ids, name, elsewhere)
                is_followed = is_followed and is_elsewhere_too
            leads_on = prefix is not None or any(block_id is not None for block_id in block_ids)
            if not leads_on and not (elsewhere is not None and elsewhere.leads_on(name)):
                break
            if self._keeps_all and None in block_ids:
                break
            found.append(FoundBlocks(prefix, block_ids, is_followed))
        num_blocks = len(found) if self._keeps_all else self._num_servable(found)
        return Hit(found[:num_blocks], [self._first_needed(spec, num_blocks) for spec in self._groups])

    def publish(
        self, table: BlockTable, token_ids: list[int], num_blocks: int, *, first_held: Sequence[int] | None = None
    ) -> None:
        """Make the table's first `num_blocks` blocks, all computed, findable.

        A block whose content is cached already, in another one, stays private, unless it alone has what a model that
        drafts keeps.

        Args:
            first_held: each group's first block that the table ever had; None where it had all of them.
        """
        names, first = self.name_blocks(table, token_ids, num_blocks), table.num_published
        columns = [self._column(group, table, first, num_blocks, first_held) for group in range(len(self._groups))]
        rows = zip(names[first:], table.covered[first:], zip(*columns, strict=True), strict=False)
        num_followed = table.num_followed_tokens // self._block_size
        first_whole = 0 if first_held is None else max((first_held[group] for group in self._in_blocks), default=0)
        for index, (name, covered, block_ids) in enumerate(rows, first):
            is_followed, is_whole = index < num_followed, index >= first_whole
            prefix = self._known(name, table.parent, covered)
            if prefix is None:
                is_followed = is_followed and is_whole
                prefix = self._register(name, table.parent, covered, block_ids, is_followed=is_followed)
                added = block_ids
            else:
                added = self._complete(prefix, block_ids, is_followed=is_followed, is_whole=is_whole)
            for block_id in added:
                if block_id is not None:
                    self._by_block[block_id] = prefix
                    self._on_change(block_id, True)
            if self._events is not None:
                self._tell_stored(added, prefix, table, token_ids, index)
            table.parent = prefix
            table.num_published = index + 1

    def adopt(self, table: BlockTable, hit: Hit) -> None:
        """The empty table takes over the blocks that `find` found; those to load are to be put in and published."""
        known = [blocks.prefix for blocks in takewhile(_is_cached, hit.found)]
        for group, first in enumerate(hit.first_needed):
            table.groups[group] = [NO_BLOCK] * first + hit.block_ids(group)
        table.first_held = list(hit.first_needed)
        table.num_followed_tokens = hit.num_followed * self._block_size
        table.num_published = len(known)
        table.parent = (known[-1] if known else None) or table.salt

    def key_of(self, block_id: int) -> BlockKey:
        """What a cached block stores."""
        prefix = self._by_block[block_id]
        return BlockKey(prefix.hash, prefix.block_ids.index(block_id), prefix.is_followed)

    def forget(self, block_id: int, *, is_saved: bool = False) -> None:
        """Removes a block that is about to store something else.

        Blocks of other groups that hold the same tokens, and that no hit can use without it, are removed too, unless
        its contents are saved.
        """
        prefix = self._by_block.pop(block_id)
        lost = prefix.block_ids.index(block_id)
        prefix.set_block(lost, None)
        self._tell_removed(lost, prefix)
        if len(self._groups) > 1 and not is_saved:
            spec = self._groups[lost]
            self._drop_blocks(prefix, [i for i, other in enumerate(self._groups) if spec.keeps_all or other == spec])
        self._prune(prefix)

    def clear(self) -> None:
        """Forget every prefix. Blocks that requests hold stay theirs, and their tables go on from unknown parents."""
        for prefix in list(self._by_block.values()):
            self._drop_blocks(prefix, range(len(self._groups)))
            self._prune(prefix)
        if self._events is not None:
            self._events.cleared()

    def _names_in_turn(self, table: BlockTable, token_ids: list[int], max_blocks: int) -> Iterator[tuple[bytes, bytes]]:
        """The name of each leading block, and what it covers."""
        for first in range(0, max_blocks, _NAMED_AT_A_TIME):
            names = self.name_blocks(table, token_ids, min(first + _NAMED_AT_A_TIME, max_blocks))
            yield from zip(names[first:], table.covered[first : len(names)], strict=True)

    def _num_servable(self, found: list[FoundBlocks]) -> int:
        """Blocks of the longest prefix whose last blocks, as far as its window reaches, each group has."""
        longest, in_a_row = 0, [0] * len(self._groups)
        for index, blocks in enumerate(found):
            num_blocks, is_servable = index + 1, True
            for group, block_id in enumerate(blocks.block_ids):
                in_a_row[group] = 0 if block_id is None else in_a_row[group] + 1
                needed = num_blocks - self._first_needed(self._groups[group], num_blocks)
                is_servable = is_servable and in_a_row[group] >= needed
            if is_servable:
                longest = num_blocks
        return longest

    def _first_needed(self, spec: GroupSpec, num_blocks: int) -> int:
        return min(spec.first_needed(num_blocks * self._block_size, self._block_size), num_blocks)

    def _known(self, name: bytes, parent: CachedPrefix | str, covered: bytes) -> CachedPrefix | None:
        prefix = self._by_hash.get(name)
        return prefix if prefix is not None and prefix.parent == parent and prefix.covered == covered else None

    def _register(
        self,
        name: bytes,
        parent: CachedPrefix | str,
        covered: bytes,
        block_ids: tuple[int | None, ...],
        *,
        is_followed: bool,
    ) -> CachedPrefix:
        """A new prefix in these blocks."""
        replaced = self._by_hash.get(name)
        if replaced is not None:
            self._drop_blocks(replaced, range(len(self._groups)))
            self._unname(replaced)
        prefix = CachedPrefix(name, parent, covered, block_ids, is_followed=is_followed)
        if isinstance(parent, CachedPrefix):
            parent.num_children += 1
        self._by_hash[name] = prefix
        if replaced is not None:
            self._prune(replaced.parent)
        return prefix

    def _complete(
        self, prefix: CachedPrefix, block_ids: Sequence[int | None], *, is_followed: bool, is_whole: bool
    ) -> Sequence[int | None]:
        """Let `prefix` have those of a table's blocks that it lacks; returns these, None in the other groups.

        Where a model that drafts followed what the table has, and not what `prefix` has, it has no other blocks.

        Args:
            is_followed: a model that drafts followed all of the table's.
            is_whole: the table has a block for each group that keeps keys and values.
        """
        if is_followed and is_whole and not prefix.is_followed:
            self._drop_blocks(prefix, self._in_blocks)
            prefix.is_followed = True
        added = [new if own is None else None for own, new in zip(prefix.block_ids, block_ids, strict=True)]
        if not is_followed and any(added[group] is not None for group in self._in_blocks):
            prefix.is_followed = False
        for group, block_id in enumerate(added):
            if block_id is not None:
                prefix.set_block(group, block_id)
        return added

    def _column(
        self, group: int, table: BlockTable, first: int, end: int, first_held: Sequence[int] | None
    ) -> list[int | None]:
        """What `table` has in a group at the indices ``first`` to ``end - 1``; None where it has nothing."""
        if self._groups[group].in_slots:
            column = [table.snapshots.get(index) for index in range(first, end)]
        else:
            column = [*table.groups[group][first:end]]
        num_gone = 0 if first_held is None else min(max(first_held[group] - first, 0), len(column))
        return [None] * num_gone + column[num_gone:]

    def _drop_blocks(self, prefix: CachedPrefix, groups: Sequence[int]) -> None:
        for group in groups:
            block_id = prefix.block_ids[group]
            if block_id is not None:
                prefix.set_block(group, None)
                del self._by_block[block_id]
                self._on_change(block_id, False)
                self._tell_removed(group, prefix)

    def _tell_stored(
        self, added: Sequence[int | None], prefix: CachedPrefix, table: BlockTable, token_ids: list[int], index: int
    ) -> None:
        """The blocks in `added`, by group, have what `table` has at `index`."""
        if self._events is not None and not prefix.is_orphan:
            parent = prefix.parent.hash if isinstance(prefix.parent, CachedPrefix) else prefix.parent
            tokens, images = self._names.token_ids(token_ids, index), self._names.image_keys(table.images, index)
            for group, block_id in enumerate(added):
                if block_id is not None:
                    self._events.stored(group, prefix.hash, parent, tokens, images)

    def _tell_removed(self, group: int, prefix: CachedPrefix) -> None:
        if self._events is not None and not prefix.is_orphan:
            self._events.removed(group, prefix.hash)

    def _prune(self, prefix: CachedPrefix | str) -> None:
        """Forget `prefix`, and those before it, as far as nothing hangs on them."""
        while isinstance(prefix, CachedPrefix) and prefix.is_known:
            if prefix.num_children or prefix.has_blocks:
                return
            self._unname(prefix)
            prefix = prefix.parent

    def _unname(self, prefix: CachedPrefix) -> None:
        prefix.is_known = False
        del self._by_hash[prefix.hash]
        if isinstance(prefix.parent, CachedPrefix):
            prefix.parent.num_children -= 1


def _of_prefix(prefix: CachedPrefix | None, num_groups: int) -> tuple[Sequence[int | None], bool]:
    """The blocks of `prefix`, and whether there is none of them that was not followed."""
    return ([None] * num_groups, True) if prefix is None else (prefix.block_ids, prefix.is_followed)


def _with_elsewhere(
    block_ids: Sequence[int | None], name: bytes, elsewhere: FindableBlocks
) -> tuple[list[int | None], bool]:
    """`block_ids` with `ELSEWHERE` in the groups whose block can be loaded, and whether all of these were followed."""
    found, are_followed = list(block_ids), True
    for group, block_id in enumerate(block_ids):
        key = BlockKey(name, group)
        if block_id is None and (key in elsewhere or key._replace(is_followed=False) in elsewhere):
            found[group], are_followed = ELSEWHERE, are_followed and key in elsewhere
    return found, are_followed


def _is_cached(blocks: FoundBlocks) -> bool:
    """Whether a prefix of the cache names what was found, and nothing has to be loaded."""
    return blocks.prefix is not None and ELSEWHERE not in blocks.block_ids
