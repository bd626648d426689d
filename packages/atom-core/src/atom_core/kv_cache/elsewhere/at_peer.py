"""`PromptAtPeer`: the blocks of one request's prompt that another engine has, found by their names here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from atom_core.kv_cache.elsewhere.protocol import BlockKey
from atom_core.kv_cache.hashing import image_keys, pack_image_keys, pack_token_ids
from atom_core.messages import PeerPrompt, PlacedImage
from atom_kernels.protocols import GroupSpec


class PromptBlocks:
    """Which blocks of a prompt one engine keeps for another, and in which order: both sides work it out alike.

    It is those that a request needs that goes on behind `num_blocks` blocks, group by group.
    """

    def __init__(self, groups: Sequence[GroupSpec], num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.first = [min(group.first_needed(num_blocks * block_size, block_size), num_blocks) for group in groups]
        self._starts, count = [], 0
        for first in self.first:
            self._starts.append(count)
            count += num_blocks - first
        self.count = count

    def position(self, group: int, index: int) -> int:
        """Where the block at `index` of a group stands among them."""
        return self._starts[group] + index - self.first[group]


class PromptAtPeer:
    """Finds what a peer keeps of one prompt.

    Args:
        prompt: what the peer is asked for.
        blocks: blocks that it keeps.
        names: what the prefix cache calls its leading full blocks.
        num_followed: leading blocks that a model that drafts has followed there.
    """

    def __init__(self, prompt: PeerPrompt, blocks: PromptBlocks, names: Sequence[bytes], num_followed: int) -> None:
        self.prompt, self.blocks = prompt, blocks
        self._num_followed = num_followed
        self._indexes = {name: index for index, name in enumerate(names)}

    def __contains__(self, key: BlockKey) -> bool:
        index = self._indexes.get(key.name)
        if index is None or index < self.blocks.first[key.group]:
            return False
        return not key.is_followed or index < self._num_followed

    def leads_on(self, name: bytes) -> bool:
        return name in self._indexes


def digest_of(token_ids: Sequence[int], images: Sequence[PlacedImage]) -> bytes:
    """By which a peer knows that both sides mean the same tokens, and the same pictures in them."""
    pictures = pack_image_keys(image_keys(images, 0, len(token_ids)))
    return hashlib.sha256(pack_token_ids(token_ids) + pictures).digest()
