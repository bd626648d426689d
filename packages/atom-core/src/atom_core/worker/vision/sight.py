"""`Sight`: what pictures make of one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atom_models.vision.seen import SeenRows


@dataclass(frozen=True)
class Sight:
    """What is added to a step of T tokens, of which some belong to requests with pictures.

    Attributes:
        offsets: int64 ``[T]`` on the host, how far positions are from the places of tokens in their requests. Where
            tokens of pictures are among them it is ``[3, T]``, if the model has threefold positions.
        seen: the rows of pictures, and what stands there; None where no token is of a picture, and in all stages of a
            pipeline but the first.
    """

    offsets: np.ndarray
    seen: SeenRows | None = None

    @property
    def is_of_text(self) -> bool:
        """Whether no token is of a picture: then all tokens of a request were moved by as much."""
        return self.seen is None and self.offsets.ndim == 1
