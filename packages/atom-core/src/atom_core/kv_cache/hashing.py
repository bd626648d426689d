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


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int64."""
    return struct.pack(f"<{len(token_ids)}q", *token_ids)


def _xxhash64(prefix: bytes, data: bytes) -> bytes:
    return xxhash.xxh64_intdigest(prefix + data).to_bytes(8, "little")
