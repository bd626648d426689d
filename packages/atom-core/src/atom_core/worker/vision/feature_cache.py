"""`FeatureCache`: what a tower made of pictures, by their digests, within a bound of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

import torch

Encode = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Pictures, uint8 ``[height, width, 3]`` (of videos ``[frames, height, width, 3]``) -> features ``[tokens, width]``."""


class FeatureCache:
    """Encodes pictures, and keeps what comes out of it: the picture that was used least lately leaves first.

    Args:
        encode: the tower.
        max_bytes: what is kept at most, beside what running requests need.

    Attributes:
        num_bytes: what is kept.
        num_encoded: pictures that were encoded.
    """

    def __init__(self, encode: Encode, max_bytes: int) -> None:
        self._encode, self._max_bytes = encode, max_bytes
        self._features: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self.num_bytes = self.num_encoded = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._features

    def take(self, wanted: Sequence[bytes], pixels_of: Callable[[bytes], torch.Tensor]) -> dict[bytes, torch.Tensor]:
        """Features of pictures by their digests; those that are not there are encoded together.

        Args:
            wanted: the digests, each once.
            pixels_of: gives the pixels of one that is encoded.
        """
        missing = [digest for digest in wanted if digest not in self._features]
        if missing:
            encoded = self._encode([pixels_of(digest) for digest in missing])
            for digest, features in zip(missing, encoded, strict=True):
                # A part of what all pictures of the step were encoded to would keep all of it.
                self._features[digest] = features.clone() if len(missing) > 1 else features
                self.num_bytes += _bytes_of(features)
            self.num_encoded += len(missing)
        for digest in wanted:
            self._features.move_to_end(digest)
        return {digest: self._features[digest] for digest in wanted}

    def evict(self, needed: Container[bytes]) -> None:
        """Let go of what is too much, but for what is `needed`."""
        for digest in list(self._features):
            if self.num_bytes <= self._max_bytes:
                return
            if digest not in needed:
                self.num_bytes -= _bytes_of(self._features.pop(digest))


def _bytes_of(features: torch.Tensor) -> int:
    return features.numel() * features.element_size()
