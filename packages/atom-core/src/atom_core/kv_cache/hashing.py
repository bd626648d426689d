"""Names of cached blocks: a hash chained over the token ids of a prompt, one link for each full block."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence

import xxhash

from atom_core.kv_cache.config import PrefixHash

# (prefix, data) -> digest. `prefix` is the digest of the block before, or empty for the first block without a salt.
BlockHasher = Callable[[bytes, bytes], bytes]


def make_block_hasher(name: PrefixHash) -> BlockHasher:
    """The hash called `name`; "sha256" draws a new random key with each call."""
    if name == "xxhash64":
        return _xxhash64
    key = secrets.token_bytes(32)
    return lambda prefix, data: hashlib.sha256(key + prefix + data).digest()


class BlockNames:
    """Names the blocks of a sequence in order: each follows from the name before it and the tokens that it covers.

    Args:
        block_size: tokens in a block.
        names_cover_next: a block's tokens are its own and the one after it.
    """

    def __init__(self, hasher: BlockHasher, block_size: int, *, names_cover_next: bool = False) -> None:
        self._hasher, self._block_size, self._num_next = hasher, block_size, int(names_cover_next)

    def extend(self, names: list[bytes], token_ids: list[int], num_blocks: int, *, salt: str) -> None:
        """Add the names of further blocks, until there are `num_blocks`; equal tokens of other salts have others."""
        first, width = len(names), 8 * (self._block_size + self._num_next)
        if first >= num_blocks:
            return
        data = pack_token_ids(token_ids[first * self._block_size : num_blocks * self._block_size + self._num_next])
        prefix = names[-1] if names else self._salted(salt)
        for start in range(0, 8 * (num_blocks - first) * self._block_size, 8 * self._block_size):
            prefix = self._hasher(prefix, data[start : start + width])
            names.append(prefix)

    def tokens(self, token_ids: list[int], index: int) -> list[int]:
        """Those that the name of a block covers."""
        return token_ids[index * self._block_size : (index + 1) * self._block_size + self._num_next]

    def _salted(self, salt: str) -> bytes:
        return self._hasher(b"", salt.encode(errors="surrogatepass")) if salt else b""


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int64."""
    return struct.pack(f"<{len(token_ids)}q", *token_ids)


def _xxhash64(prefix: bytes, data: bytes) -> bytes:
    return xxhash.xxh64_intdigest(prefix + data).to_bytes(8, "little")
