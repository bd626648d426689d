"""`PeerBlocks`: blocks of prompts that other engines have computed for this one, and this one for others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.elsewhere.at_peer import PromptAtPeer, PromptBlocks, digest_of
from atom_core.kv_cache.elsewhere.protocol import FinishedLoad
from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.messages import (
    BlockCopy,
    BlockTransfers,
    KVTransferParams,
    KVTransferStats,
    PeerPrompt,
    PlacedImage,
    Transfer,
    TransferResult,
)
from atom_kernels.protocols import GroupSpec


class PeerBlocks:
    """The scheduler's side of every connector: workers move what it says.

    A prompt that is computed for a peer is copied to places in the host's memory when it ends, and keeps them until
    the peer has it, or time is up; which of the two, the worker tells. Its blocks go back to the cache at once.

    Args:
        config: who this engine is, and whom it fetches from.
        groups, block_size: what each group of layers keeps, and tokens in a block.
        first_place, num_places: places for what others are to fetch.
        ids: numbers of transfers, which nobody else gives out.
    """

    def __init__(
        self,
        config: KVTransferConfig,
        *,
        groups: Sequence[GroupSpec],
        block_size: int,
        first_place: int,
        num_places: int,
        ids: Iterator[int],
    ) -> None:
        self._config, self._groups, self._block_size, self._ids = config, tuple(groups), block_size, ids
        self._free = list(range(first_place + num_places - 1, first_place - 1, -1))
        self._saves: list[BlockCopy] = []
        self._begun: list[Transfer] = []
        self._fetches: dict[int, list[int]] = {}  # positions by id
        self._left: set[int] = set()  # peers are told that nothing is needed
        self._sends: dict[int, list[int]] = {}  # places by id
        self._held: dict[int, PromptAtPeer] = {}
        self._void: set[int] = set()
        self._num_sent = self._num_expired = self._num_not_kept = 0
        self._num_fetched = self._num_failed = 0

    @property
    def has_sends(self) -> bool:
        """Whether peers are awaited."""
        return bool(self._sends)

    def num_kept_tokens(self, num_prompt_tokens: int) -> int:
        """Leading tokens of a prompt that a peer can go on from: it computes one token at least."""
        return (num_prompt_tokens - 1) // self._block_size * self._block_size

    def expect(
        self,
        params: KVTransferParams,
        token_ids: Sequence[int],
        names: Sequence[bytes],
        images: Sequence[PlacedImage] = (),
    ) -> PromptAtPeer | None:
        """What comes of this prompt; None where nothing does.

        Args:
            names: what the prefix cache calls its leading full blocks.
            images: its pictures.
        """
        num_blocks, rest = divmod(params.remote_num_tokens, self._block_size)
        is_whole = not rest and 0 < params.remote_num_tokens <= self.num_kept_tokens(len(token_ids))
        host, port, key = params.remote_host or "", params.remote_port or 0, params.remote_request_id
        if not is_whole or key is None or not self._config.may_fetch_from(host, port):
            self._num_failed += 1
            return None
        digest = digest_of(token_ids[: params.remote_num_tokens], images)
        prompt = PeerPrompt(params.remote_engine_id or "", key, digest, host, port)
        blocks = PromptBlocks(self._groups, num_blocks, self._block_size)
        return PromptAtPeer(prompt, blocks, names[:num_blocks], params.remote_num_followed_tokens // self._block_size)

    def hold(self, prompt: PromptAtPeer, to_load: Sequence[tuple[int, int]]) -> int:
        """The id of a load of these blocks, each a group and an index; `load` says where to."""
        load_id = next(self._ids)
        self._held[load_id] = prompt
        self._fetches[load_id] = [prompt.blocks.position(group, index) for group, index in to_load]
        return load_id

    def load(self, load_id: int, block_ids: Sequence[int]) -> None:
        """Fetch what is held into these blocks, which nobody else may use until the load has finished."""
        positions = self._fetches[load_id]
        copies = tuple(BlockCopy(source, target) for source, target in zip(positions, block_ids, strict=True))
        self._begun.append(Transfer(load_id, "fetch", copies, self._held.pop(load_id).prompt))

    def leave(self, prompt: PromptAtPeer) -> None:
        """Nothing of this prompt is needed: the peer may forget it."""
        number = next(self._ids)
        self._left.add(number)
        self._begun.append(Transfer(number, "fetch", (), prompt.prompt))

    def keep(self, table: BlockTable, token_ids: Sequence[int]) -> KVTransferParams | None:
        """A prompt has been computed for a peer: what is to be told to fetch it; None where it cannot be kept."""
        num_tokens = self.num_kept_tokens(len(token_ids))
        blocks = PromptBlocks(self._groups, num_tokens // self._block_size, self._block_size)
        if not blocks.count:
            return None
        held = zip(table.first_held, blocks.first, strict=True)
        if blocks.count > len(self._free) or any(first_held > first for first_held, first in held):
            self._num_not_kept += 1
            return None
        places = [self._free.pop() for _ in range(blocks.count)]
        rows = zip(table.groups, blocks.first, strict=True)
        block_ids = [block_id for row, first in rows for block_id in row[first : blocks.num_blocks]]
        self._saves += map(BlockCopy, block_ids, places)
        number, key = next(self._ids), secrets.token_urlsafe(16)
        self._sends[number] = places
        copies = tuple(BlockCopy(place, position) for position, place in enumerate(places))
        prompt = PeerPrompt(self._config.engine_id, key, digest_of(token_ids[:num_tokens], table.images))
        self._begun.append(Transfer(number, "send", copies, prompt))
        return KVTransferParams(
            do_remote_prefill=True,
            remote_engine_id=self._config.engine_id,
            remote_request_id=key,
            remote_host=self._config.kv_ip,
            remote_port=self._config.kv_port,
            remote_num_tokens=num_tokens,
            remote_num_followed_tokens=min(table.num_followed_tokens, num_tokens),
        )

    def take_transfers(self) -> BlockTransfers | None:
        """See `BlocksElsewhere`."""
        awaited = (*self._fetches, *self._left, *self._sends)
        if not awaited:
            return None
        transfers = BlockTransfers(tuple(self._saves), tuple(self._begun), awaited)
        self._saves, self._begun = [], []
        return transfers

    def take_results(self, results: Sequence[TransferResult]) -> list[FinishedLoad]:
        """See `BlocksElsewhere`."""
        finished = []
        for result in results:
            number = result.transfer_id
            self._left.discard(number)
            if (places := self._sends.pop(number, None)) is not None:
                self._free += places
                self._num_sent += result.num_done == len(places)
                self._num_expired += result.num_done != len(places)
            elif (positions := self._fetches.pop(number, None)) is not None:
                is_right = result.num_done == len(positions)
                self._num_fetched += result.num_done
                self._num_failed += not is_right
                finished.append(FinishedLoad(number, is_right and number not in self._void))
                self._void.discard(number)
        return finished

    def forget(self) -> None:
        """See `BlocksElsewhere`. What others are to fetch stays."""
        self._void.update(self._fetches)

    def stats(self) -> KVTransferStats:
        """Counts as they stand."""
        return KVTransferStats(
            num_kept_prompts=len(self._sends),
            num_free_places=len(self._free),
            num_sent_prompts=self._num_sent,
            num_expired_prompts=self._num_expired,
            num_not_kept_prompts=self._num_not_kept,
            num_fetched_blocks=self._num_fetched,
            num_failed_fetches=self._num_failed,
        )
