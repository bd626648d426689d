"""Names of cached blocks: a hash chained over the tokens and pictures of a prompt, one link for each full block."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from atom_core.kv_cache.config import PrefixHash
from atom_core.messages import PlacedImage, images_within

# (prefix, data) -> digest. `prefix` is the digest of the block before, or empty for the first block without a salt.
BlockHasher = Callable[[bytes, bytes], bytes]


def make_block_hasher(name: PrefixHash) -> BlockHasher:
    """The hash called `name`; "sha256" draws a new random key with each call."""
    if name == "xxhash64":
        return _xxhash64
    key = secrets.token_bytes(32)
    return lambda prefix, data: hashlib.sha256(key + prefix + data).digest()


class ImageKey(NamedTuple):
    """A picture in a block: its digest, and where its first token stands, counted from that of the block."""

    digest: bytes
    offset: int


class BlockNames:
    """Names the blocks of a sequence in order: each follows from the name before it and from what it covers.

    The tokens of a picture are all alike: its digest tells it from others, and the offset its tokens from each other.

    Args:
        block_size: tokens in a block.
        names_cover_next: a block's tokens are its own and the one after it.
    """

    def __init__(self, hasher: BlockHasher, block_size: int, *, names_cover_next: bool = False) -> None:
        self._hasher, self._block_size, self._num_next = hasher, block_size, int(names_cover_next)

    def extend(
        self,
        names: list[bytes],
        token_ids: list[int],
        num_blocks: int,
        *,
        salt: str,
        images: Sequence[PlacedImage] = (),
    ) -> list[bytes]:
        """Add the names of further blocks, until there are `num_blocks`.

        Args:
            salt: equal tokens of other salts have other names.
            images: the pictures of the prompt, in order.

        Returns:
            What each of the added names covers: the tokens, as `pack_token_ids` has them, and the keys of pictures.
        """
        first, num_tokens = len(names), self._block_size
        if first >= num_blocks:
            return []
        data = pack_token_ids(token_ids[first * num_tokens : num_blocks * num_tokens + self._num_next])
        step, width = 8 * num_tokens, 8 * (num_tokens + self._num_next)
        covered = [data[start : start + width] for start in range(0, step * (num_blocks - first), step)]
        if images:
            indices = range(first, num_blocks)
            keys = [pack_image_keys(self.image_keys(images, index)) for index in indices]
            covered = [tokens + pictures for tokens, pictures in zip(covered, keys, strict=True)]
        hasher, name = self._hasher, names[-1] if names else self._salted(salt)
        for each in covered:
            name = hasher(name, each)
            names.append(name)
        return covered

    def image_keys(self, images: Sequence[PlacedImage], index: int) -> tuple[ImageKey, ...]:
        """The pictures that the name of a block covers."""
        return image_keys(images, *self._range(index))

    def token_ids(self, token_ids: list[int], index: int) -> list[int]:
        """The tokens that the name of a block covers."""
        first, end = self._range(index)
        return token_ids[first:end]

    def _range(self, index: int) -> tuple[int, int]:
        return index * self._block_size, (index + 1) * self._block_size + self._num_next

    def _salted(self, salt: str) -> bytes:
        return self._hasher(b"", salt.encode(errors="surrogatepass")) if salt else b""


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int64."""
    return struct.pack(f"<{len(token_ids)}q", *token_ids)


def image_keys(images: Sequence[PlacedImage], first: int, end: int) -> tuple[ImageKey, ...]:
    """The pictures that have one of the tokens ``first`` to ``end - 1``, with their offsets from `first`."""
    inside = images_within(images, first, end)
    return tuple(ImageKey(placed.image.digest, placed.first_token - first) for placed in inside)


def pack_image_keys(keys: Sequence[ImageKey]) -> bytes:
    """Digests, each with its offset as a little-endian int64."""
    return b"".join(key.digest + struct.pack("<q", key.offset) for key in keys)


def _xxhash64(prefix: bytes, data: bytes) -> bytes:
    return xxhash.xxh64_intdigest(prefix + data).to_bytes(8, "little")
