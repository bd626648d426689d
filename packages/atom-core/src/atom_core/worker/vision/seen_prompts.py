"""`SeenPrompt`: the pictures of one running request, and the positions of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atom_core.messages import NewRequest, PlacedImage, images_within
from atom_models.vision.positions import threefold_positions
from atom_models.vision.spec import VisionSpec


class SeenPrompt:
    """What pictures make of a request.

    Attributes:
        images: in order.
        num_computed_tokens: tokens that are computed after the last step with this request.
    """

    def __init__(self, request: NewRequest, spec: VisionSpec) -> None:
        self.images: Sequence[PlacedImage] = request.images
        self.num_computed_tokens = 0
        # Behind the last picture all tokens stand by as much before their places.
        num_tokens = request.images[-1].end + 1
        places = np.arange(num_tokens)
        if spec.has_threefold_positions:
            images = [(placed.first_token, placed.image) for placed in request.images]
            sizes = [(first, image.height, image.width, image.lag) for first, image in images]
            places, _ = threefold_positions(request.token_ids[:num_tokens], sizes, spec)
        self._offsets = places - np.arange(num_tokens)

    def images_of(self, first: int, count: int) -> Sequence[PlacedImage]:
        """The pictures that have one of `count` tokens from `first` on."""
        return images_within(self.images, first, first + count)

    def offsets(self, first: int, count: int) -> np.ndarray:
        """Int64 ``[3, count]``, or ``[count]``: how far positions are from the places of tokens in the request."""
        last = self._offsets.shape[-1] - 1
        return self._offsets[..., np.minimum(np.arange(first, first + count), last)]

    @property
    def begun(self) -> Sequence[PlacedImage]:
        """The pictures of which some tokens are computed, and some are not."""
        return self.images_of(self.num_computed_tokens, 1)
