"""`ImagesAtWorker`: which pictures the worker has, so that their pixels are sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from atom_core.messages import PlacedImage


class ImagesAtWorker:
    """Counts the requests that the worker knows by the pictures in them; it keeps the pixels of these."""

    def __init__(self) -> None:
        self._num_requests: Counter[bytes] = Counter()

    def send(self, images: Sequence[PlacedImage]) -> tuple[PlacedImage, ...]:
        """The pictures of a request that the worker is told of: without pixels, where it has them already."""
        return tuple(map(self._send, images))

    def drop(self, images: Sequence[PlacedImage]) -> None:
        """The worker is told to forget a request with these pictures."""
        for placed in images:
            digest = placed.image.digest
            self._num_requests[digest] -= 1
            if not self._num_requests[digest]:
                del self._num_requests[digest]

    def _send(self, placed: PlacedImage) -> PlacedImage:
        digest = placed.image.digest
        self._num_requests[digest] += 1
        return placed if self._num_requests[digest] == 1 else without_pixels(placed)


def without_pixels(placed: PlacedImage) -> PlacedImage:
    """Its size, its digest and its place alone."""
    return msgspec.structs.replace(placed, image=msgspec.structs.replace(placed.image, pixels=b""))
