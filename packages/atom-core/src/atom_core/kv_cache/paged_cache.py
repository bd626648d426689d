"""`PagedCache`: what the scheduler asks of the cache, for one request at a time."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.kv_cache.block_pool import BlockPool
from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.config import KVCacheConfig
from atom_core.kv_cache.elsewhere.loads import ELSEWHERE, Loads
from atom_core.kv_cache.elsewhere.peers import PeerBlocks
from atom_core.kv_cache.elsewhere.protocol import BlocksElsewhere, FinishedLoad
from atom_core.kv_cache.hashing import BlockHasher, make_block_hasher
from atom_core.kv_cache.kept_states import KeptStates
from atom_core.kv_cache.prefix_cache import Hit, PrefixCache
from atom_core.kv_events.recorder import KVEventRecorder
from atom_core.kv_events.schema import KVEvent
from atom_core.messages import BlockTransfers, KVTransferParams, PlacedImage, TransferResult


class PagedCache:
    """One block pool for all groups of layers, and one prefix cache.

    A request holds blocks for its tokens in every group. In groups that see everything it gets those of all its tokens
    when it is admitted; in a group with a window it gets them as its steps need them, and gives back what lies behind
    the window. In groups that keep states it holds slots (see `KeptStates`). `max_step_tokens` is the most that one
    step computes.

    What is cached in blocks that are to store something else may be kept `elsewhere`, and is loaded when a request
    begins with it: its table says so by its `load_id` until `finish_load`. So is what `peers` have computed of it.

    Attributes:
        gives_back: some group does not keep all, so that `trim` has something to do.
        states: the states of requests, and those behind cached prefixes.
        num_queries, num_hits: tokens looked up in the prefix cache, and found.
        num_returning: blocks given up that a step in flight, or a load, may still read or write.

    Raises:
        ValueError: blocks come from elsewhere, and groups keep states or no prefix is found.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        hasher: BlockHasher | None = None,
        *,
        max_step_tokens: int,
        elsewhere: BlocksElsewhere | None = None,
        peers: PeerBlocks | None = None,
    ) -> None:
        has_others = elsewhere is not None or peers is not None
        if has_others and (config.has_slots or not config.enable_prefix_caching):
            raise ValueError("blocks can be kept elsewhere only where prefixes are found and no group keeps states")
        self.config, self._elsewhere, self._peers = config, elsewhere, peers
        self._loads = Loads(elsewhere, peers) if has_others else None
        self.gives_back = not all(group.keeps_all or group.in_slots for group in config.groups)
        self.num_queries = 0
        self.num_hits = 0
        self.num_returning = 0
        self._max_step_tokens = max_step_tokens
        self._returning: dict[int, list[list[int]]] = {}
        self._prefixes: PrefixCache | None = None
        self._events: KVEventRecorder | None = None
        self._in_blocks = [index for index, group in enumerate(config.groups) if not group.in_slots]
        self.states = KeptStates(config, on_evict=self._forget)
        if config.enable_prefix_caching:
            self.pool = BlockPool(config.num_blocks, on_evict=self._forget)
            self._events = KVEventRecorder(config.block_size, config.groups) if config.tells_events else None
            hasher = hasher or make_block_hasher(config.prefix_hash)
            self._prefixes = PrefixCache(
                config.block_size,
                hasher,
                self._set_cached,
                config.groups,
                names_cover_next=config.names_cover_next,
                events=self._events,
            )
        else:
            self.pool = BlockPool(config.num_blocks)

    def make_table(self, salt: str, images: Sequence[PlacedImage] = ()) -> BlockTable:
        """An empty table with a row for each group, of a prompt with these pictures."""
        return BlockTable(salt, len(self.config.groups), images)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks of one group that store `num_tokens` tokens."""
        return -(-num_tokens // self.config.block_size)

    def admit(
        self,
        table: BlockTable,
        token_ids: list[int],
        *,
        use_prefix: bool,
        max_tokens: int,
        reserve: int,
        count: bool,
        prefers_followed: bool = False,
    ) -> int | None:
        """Fill the empty `table` for all of `token_ids`: cached blocks first, then free ones.

        Groups with a window get no more than a first step and the window need.

        Args:
            use_prefix: look for cached blocks, here and elsewhere.
            max_tokens: tokens that the request may ever store.
            reserve: blocks that must stay free.
            count: this look-up enters the statistics.
            prefers_followed: cached blocks that a model that drafts has not followed are left out, if one step can
                compute their tokens again: behind them there would be no drafts.

        Returns how many tokens need not be computed (at most ``len(token_ids) - 1``); None, with nothing changed,
        where the free blocks or slots do not suffice.
        """
        if not self.states.have_room:
            return None
        hit = Hit([], [0] * len(table.groups))
        if use_prefix and self._prefixes is not None:
            most = (len(token_ids) - 1) // self.config.block_size
            elsewhere = None if self._loads is None else self._loads.seen_by(table)
            hit = self._prefixes.find(table, token_ids, most, elsewhere=elsewhere)
            num_without = (len(hit.found) - hit.num_followed) * self.config.block_size
            if prefers_followed and 0 < num_without <= self._max_step_tokens:
                hit = self._prefixes.find(table, token_ids, hit.num_followed, elsewhere=elsewhere)
        num_found = len(hit.found)
        num_found_tokens, block_size = num_found * self.config.block_size, self.config.block_size
        num_blocks = [
            group.num_at_first(len(token_ids), num_found_tokens, block_size, self._max_step_tokens)
            for group in self.config.groups
        ]
        rows = [hit.block_ids(group) for group in self._in_blocks] if num_found else []
        found = [[block_id for block_id in row if block_id != ELSEWHERE] for row in rows]
        num_to_load = sum(map(len, rows)) - sum(map(len, found))
        num_fresh = sum(num_blocks) - len(self._in_blocks) * num_found + num_to_load
        num_idle = sum(self.pool.num_holders(block_id) == 0 for block_ids in found for block_id in block_ids)
        if num_fresh + num_idle + reserve > self.pool.num_free:
            return None
        if self._prefixes is not None:
            self._prefixes.adopt(table, hit)
        for block_ids in found:
            self.pool.retain(block_ids)
        to_load = [] if self._loads is None else self._loads.hold(table, self._in_blocks)
        for group in self._in_blocks:
            self._fill(table.groups[group], num_blocks[group], max_tokens)
        if self._loads is not None and to_load:
            self._loads.begin(table, to_load)
        elif self._prefixes is not None and table.num_published < num_found:
            self._prefixes.publish(table, token_ids, num_found, first_held=table.first_held)
        self.states.begin(table, hit)
        table.capacity = min(num_blocks[group] for group in self._in_blocks) * block_size
        table.has_new_blocks = True
        if count and use_prefix and self._prefixes is not None and table.load_id is None:
            self._count(len(token_ids), num_found_tokens)
        return num_found_tokens

    def finish_load(self, table: BlockTable, token_ids: list[int], num_tokens: int, *, count: bool) -> None:
        """The load of `table` has ended: its blocks hold the first `num_tokens` tokens, and others may find them."""
        table.load_id = None
        if self._prefixes is not None:
            num_blocks = num_tokens // self.config.block_size
            self._prefixes.publish(table, token_ids, num_blocks, first_held=table.first_held)
        if count:
            self._count(len(token_ids), num_tokens)

    def expect(self, table: BlockTable, token_ids: list[int], params: KVTransferParams) -> None:
        """A peer has computed the prompt of a request: `admit` finds what it has."""
        if self._peers is not None and self._prefixes is not None:
            names = self._prefixes.name_blocks(table, token_ids, (len(token_ids) - 1) // self.config.block_size)
            table.at_peer = self._peers.expect(params, token_ids, names, table.images)

    def leave_peer(self, table: BlockTable, *, has_loaded: bool = False) -> None:
        """Nothing more is needed of what a peer has of this request."""
        if table.at_peer is not None and self._peers is not None and not has_loaded:
            self._peers.leave(table.at_peer)
        table.at_peer = None

    def keep_for_peer(self, table: BlockTable, token_ids: list[int]) -> KVTransferParams | None:
        """What a peer needs to go on from this prompt, whose blocks `table` has; None where that cannot be kept."""
        return None if self._peers is None else self._peers.keep(table, token_ids)

    @property
    def awaits_peers(self) -> bool:
        """Whether prompts wait for peers to fetch them."""
        return self._peers is not None and self._peers.has_sends

    def take_transfers(self) -> BlockTransfers | None:
        """What the next step is told, once; None where it has nothing to do or to report."""
        return None if self._loads is None else self._loads.take_transfers()

    def take_results(self, results: Sequence[TransferResult]) -> list[FinishedLoad]:
        """A step reported transfers: the loads that have ended. Blocks that were given up meanwhile are free now."""
        if self._loads is None:
            return []
        finished, block_ids = self._loads.take_results(results)
        self.num_returning -= len(block_ids)
        self.pool.release(block_ids)
        return finished

    @property
    def num_loading(self) -> int:
        """Loads that have not ended."""
        return 0 if self._loads is None else len(self._loads)

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that `table` lacks to store `num_tokens` tokens."""
        num_blocks, num_missing = -(-num_tokens // self.config.block_size), 0
        for group in self._in_blocks:
            num_missing += max(num_blocks - len(table.groups[group]), 0)
        return num_missing

    def grow(self, table: BlockTable, num_tokens: int, max_tokens: int) -> bool:
        """Extend `table` so that it stores `num_tokens` tokens; False, with nothing changed, where blocks lack."""
        if num_tokens <= table.capacity:
            return True
        block_size = self.config.block_size
        num_blocks = -(-num_tokens // block_size)
        if self.num_missing(table, num_tokens) > self.pool.num_free:
            return False
        for group in self._in_blocks:
            self._extend(table.groups[group], num_blocks, max_tokens)
        table.capacity = num_blocks * block_size
        table.has_new_blocks = True
        return True

    def trim(self, table: BlockTable, num_tokens: int, after_step: int) -> None:
        """Give up the blocks that no query after the first `num_tokens` tokens sees, once `after_step` is reported.

        With prefix caching those stay that a query right after the last full block sees: what a request leaves behind
        can be found up to there.
        """
        block_size = self.config.block_size
        if self._prefixes is not None:
            num_tokens -= num_tokens % block_size
        for group, spec in enumerate(self.config.groups):
            if spec.keeps_all or spec.in_slots:
                continue
            block_ids, first = table.groups[group], table.first_held[group]
            keep = min(spec.first_needed(num_tokens, block_size), len(block_ids))
            if keep > first:
                table.first_held[group] = keep
                self._return_after(after_step, block_ids[first:keep])

    def publish(self, table: BlockTable, token_ids: list[int], num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` tokens are computed: full blocks may be shared now, as far as ids are known.

        To be called for each step of the request before `step_reported`, which lets go of blocks that it trimmed.
        """
        # Most steps of a decode fill no block.
        if self._prefixes is None or num_computed_tokens // self.config.block_size <= table.num_published:
            return
        num_blocks = self._prefixes.num_nameable(num_computed_tokens, len(token_ids))
        self._prefixes.publish(table, token_ids, num_blocks)
        self.states.written(table, num_blocks)

    def release(self, table: BlockTable, after_step: int | None = None) -> None:
        """Give up all blocks: at once, or when step `after_step`, the last that may use them, has been reported.

        Blocks of which a load fills some wait for its end. Slots go back at once.
        """
        block_ids, load_id = table.held(), table.load_id
        self.states.release(table)
        table.clear()
        if self._loads is not None and load_id is not None:
            self._loads.give_up(load_id, block_ids)
            table.at_peer = None
            self.num_returning += len(block_ids)
        elif after_step is None:
            self.pool.release(block_ids)
        else:
            self._return_after(after_step, block_ids)

    def step_reported(self, step_id: int) -> None:
        """Step `step_id` has run: blocks that waited for it return to the pool."""
        for block_ids in self._returning.pop(step_id, ()):
            self.num_returning -= len(block_ids)
            self.pool.release(block_ids)

    def forget_prefixes(self) -> None:
        """Nothing that was cached so far is found any more; whoever holds blocks of it keeps them.

        Loads on their way fail, since what they bring would be found again.
        """
        if self._prefixes is not None:
            self._prefixes.clear()
        if self._loads is not None:
            self._loads.forget()

    def take_events(self) -> list[KVEvent]:
        """What became of cached blocks since the last call; nothing where that is not recorded."""
        return [] if self._events is None else self._events.take()

    def _return_after(self, step_id: int, block_ids: list[int]) -> None:
        self._returning.setdefault(step_id, []).append(block_ids)
        self.num_returning += len(block_ids)

    def _extend(self, block_ids: list[int], num_blocks: int, max_tokens: int) -> None:
        """Add free blocks to a group's row, so that it has `num_blocks` at least."""
        count = num_blocks - len(block_ids)
        if count > 0:
            room = self.num_blocks_for(max_tokens) - num_blocks
            block_ids += self.pool.allocate(count, after=block_ids[-1] if block_ids else None, room=room)

    def _fill(self, row: list[int], num_blocks: int, max_tokens: int) -> None:
        """Put free blocks in the place of those to load, and behind what was found."""
        if ELSEWHERE not in row:
            self._extend(row, num_blocks, max_tokens)
            return
        first = row.index(ELSEWHERE)
        found = row[first:]
        del row[first:]
        count = num_blocks - first - len(found) + found.count(ELSEWHERE)
        room = self.num_blocks_for(max_tokens) - num_blocks
        fresh = iter(self.pool.allocate(count, after=row[-1] if row else None, room=room))
        row += [next(fresh) if block_id == ELSEWHERE else block_id for block_id in found]
        row += fresh

    def _count(self, num_queries: int, num_hits: int) -> None:
        self.num_queries += num_queries
        self.num_hits += num_hits

    def _set_cached(self, block_id: int, is_cached: bool) -> None:
        snapshots = self.states.snapshots
        pool = snapshots if block_id >= snapshots.first_id else self.pool
        pool.set_cached(block_id, is_cached)

    def _forget(self, block_id: int) -> None:
        if self._prefixes is None:
            return
        is_saved = self._elsewhere is not None and self._elsewhere.save(self._prefixes.key_of(block_id), block_id)
        self._prefixes.forget(block_id, is_saved=is_saved)
