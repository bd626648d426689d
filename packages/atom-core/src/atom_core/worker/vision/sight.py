"""`Sight`: what pictures make of one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from atom_core.worker.steps.moved_positions import on_device
from atom_models.vision.seen import SeenRows

if TYPE_CHECKING:
    from atom_core.worker.steps.batch import ModelInput, StepRows
    from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class Sight:
    """What is added to a step of T tokens, of which some belong to requests with pictures.

    Attributes:
        offsets: int64 ``[T]`` on the host, how far positions are from the places of tokens in their requests. Where
            tokens of pictures are among them it is ``[3, T]``, if the model has threefold positions.
        seen: the rows of pictures, and what stands there; None where no token is of a picture, and in all stages of a
            pipeline but the first.
        sees_until: int32 ``[T]`` on the host, the last position that each token of a picture sees, and -1 of others
            (`BatchGeometry.sees_until`); None where no token sees any behind it.
    """

    offsets: np.ndarray
    seen: SeenRows | None = None
    sees_until: np.ndarray | None = None

    @property
    def is_of_text(self) -> bool:
        """Whether no token is of a picture: then all tokens of a request were moved by as much."""
        return self.seen is None and self.offsets.ndim == 1 and self.sees_until is None

    def shown_to(self, batch: ModelInput) -> ModelInput:
        """The batch of the step, with what pictures make of it on its device."""
        device, geometries = batch.positions.device, batch.geometries
        if self.sees_until is not None:
            geometries = [_with_decodes(each, self._most_decodes(batch.rows)) for each in geometries]
            sees_until = on_device(self.sees_until, device)
            geometries = tuple(replace(each, sees_until=sees_until) for each in geometries)
        return replace(batch, offsets=on_device(self.offsets, device), seen=self.seen, geometries=geometries)

    def _most_decodes(self, rows: StepRows) -> int:
        """How many requests stand before the first that has tokens of a picture."""
        first = np.flatnonzero(self.sees_until != -1)[0]
        return int(np.searchsorted(rows.query_starts, first, side="right")) - 1


def _with_decodes(geometry: BatchGeometry, most: int) -> BatchGeometry:
    """Where drafts are verified, the last tokens of a prompt may be as few: they are no decode if they see ahead."""
    if geometry.num_decodes <= most:
        return geometry
    return replace(geometry, num_decodes=most, prompts_are_new=False, num_prompt_keys=None)
