"""`Router`: which engine gets a prompt, by what it would have to compute there and what waits there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atom_core.engine.replicas.known_blocks import KnownBlocks
from atom_core.kv_cache.config import PrefixHash
from atom_core.kv_cache.hashing import BlockNames, make_block_hasher
from atom_core.messages import PlacedImage

# The prompts of a request are compared by so many blocks at most, all together: naming them takes some ms of the event
# loop.
MOST_NAMED_BLOCKS = 1024


@dataclass(frozen=True)
class Route:
    """Where a prompt goes.

    Attributes:
        rank: the engine's number.
        num_to_compute: tokens of the prompt that its cache is not known to have.
    """

    rank: int
    num_to_compute: int


class Router:
    """Sends a prompt where it costs least: tokens to be computed there, and tokens that wait there before it.

    ``cost(engine) = load(engine) + prompt tokens - tokens of leading blocks that the engine was sent before``

    So an engine that has a prefix gets the prompt for as long as it has less to do beyond the others than the prefix
    saves. Where costs are equal, the engine that was sent fewest tokens to compute is taken: new prefixes spread.

    Args:
        block_size: tokens in a block of the engines' caches.
        prefix_hash: the hash by which they name blocks. Names never leave a process, so keys need not be the same.
        finds_prefixes: whether prefixes count; only the load does where caches find none, or nobody has a choice.
    """

    def __init__(self, block_size: int, prefix_hash: PrefixHash, *, finds_prefixes: bool = True) -> None:
        self._names = BlockNames(make_block_hasher(prefix_hash), block_size)
        self._block_size, self._finds_prefixes = block_size, finds_prefixes
        self._known: dict[int, KnownBlocks] = {}
        self._sent: dict[int, int] = {}

    def join(self, rank: int, num_blocks: int) -> None:
        """An engine with an empty cache of so many blocks can be sent prompts."""
        self._known[rank] = KnownBlocks(num_blocks)
        self._sent[rank] = min(self._sent.values(), default=0)

    def leave(self, rank: int) -> None:
        """An engine is gone, and its cache with it."""
        self._known.pop(rank, None)
        self._sent.pop(rank, None)

    def forget_prefixes(self) -> None:
        """The engines were told to forget what they had cached."""
        for known in self._known.values():
            known.clear()

    def route(
        self,
        token_ids: list[int],
        loads: Mapping[int, int],
        *,
        salt: str = "",
        images: Sequence[PlacedImage] = (),
        most_blocks: int = MOST_NAMED_BLOCKS,
    ) -> Route:
        """Choose an engine for a prompt, which it is then taken to have been sent.

        Args:
            loads: tokens that wait at each engine.
            salt: prompts of different salts share nothing.
            images: the pictures of the prompt.
            most_blocks: how many leading blocks of the prompt are compared, at most.

        Raises:
            LookupError: there is no engine.
        """
        names = self._names_of(token_ids, salt, images, most_blocks)
        to_compute = {
            rank: len(token_ids) - self._block_size * known.num_leading(names) for rank, known in self._known.items()
        }
        if not to_compute:
            raise LookupError("there is no engine")
        rank = min(to_compute, key=lambda rank: (loads.get(rank, 0) + to_compute[rank], self._sent[rank], rank))
        self._known[rank].add(names)
        self._sent[rank] += to_compute[rank]
        return Route(rank, to_compute[rank])

    def _names_of(
        self, token_ids: list[int], salt: str, images: Sequence[PlacedImage], most_blocks: int
    ) -> Sequence[bytes]:
        """Names of the blocks that a prompt could find: its last token is always computed."""
        names: list[bytes] = []
        if self._finds_prefixes:
            num_blocks = min((len(token_ids) - 1) // self._block_size, most_blocks)
            self._names.extend(names, token_ids, num_blocks, salt=salt, images=images)
        return names
