"""`StepsOfNobody`: runs the steps of a warm-up by the way of all steps, over a block that no request has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from atom_core.kv_cache.slot_pool import NO_SLOT
from atom_core.messages import Image, NewRequest, PlacedImage, ScheduledRequest, SchedulerOutput
from atom_core.worker.runner import Masks, PendingOutput
from atom_core.worker.warmup.variants import Rows, Variant
from atom_kernels.protocols import GroupSpec

# No step of the scheduler has this number.
STEP_ID = -1


class RunsSteps(Protocol):
    """What a warm-up needs of `RunningModel`."""

    @property
    def num_free_slots(self) -> int: ...
    def forward(self, step: SchedulerOutput) -> None: ...
    def sample(self, masks: Masks | None) -> PendingOutput: ...
    def abandon(self, step: SchedulerOutput) -> None: ...


class StepsOfNobody:
    """Runs variants of steps while requests may be open, none of which is touched.

    Every entry of a block table is one spare block, so that tokens are written where nobody reads; layers that keep
    states are told of no slot.

    Args:
        model: runs the steps.
        groups: what each group of layers keeps.
        spare_block: the block.
        block_size: tokens of a block.
        vocab_size: tokens that a mask tells of.
        drafts_by_model: drafts that are verified are those that the worker keeps.
        picture_size: height and width of the smallest picture, and its tokens; None where none is seen.
    """

    def __init__(
        self,
        model: RunsSteps,
        groups: Sequence[GroupSpec],
        *,
        spare_block: int,
        block_size: int,
        vocab_size: int,
        drafts_by_model: bool = False,
        picture_size: tuple[int, int, int] | None = None,
    ) -> None:
        self._model, self._groups, self._spare_block = model, groups, spare_block
        self._block_size, self._vocab_size, self._drafts_by_model = block_size, vocab_size, drafts_by_model
        self._picture_size, self._picture_numbers = picture_size, itertools.count()

    def has_room(self, variant: Variant) -> bool:
        """Whether so many requests are not open that those of the step have places beside them."""
        return variant.num_reqs <= self._model.num_free_slots

    def run(self, variant: Variant) -> PendingOutput:
        """Run it, and forget its requests."""
        step = self._step(variant)
        with self._forgotten(step):
            self._model.forward(step)
            return self._model.sample(self._masks(step) if variant.is_masked else None)

    @contextmanager
    def _forgotten(self, step: SchedulerOutput) -> Iterator[None]:
        try:
            yield
        finally:
            names = [request.request_id for request in step.new_requests]
            self._model.abandon(SchedulerOutput(STEP_ID, [], [], names))

    def _step(self, variant: Variant) -> SchedulerOutput:
        rows = [each for each in variant.rows for _ in range(each.count)]
        names = [f"warm-up {number}" for number in range(len(rows))]
        new = [
            NewRequest(
                name,
                [0] * (each.num_cached + each.num_new),
                # A decode has generated its last token, for penalties on what was generated.
                max(each.num_cached + each.num_new - (each.num_cached > 0), 1),
                variant.params,
                eos_token_ids=(),
                sample_index=0,
                images=self._pictures(each),
            )
            for name, each in zip(names, rows, strict=True)
        ]
        scheduled = [self._scheduled(name, each) for name, each in zip(names, rows, strict=True)]
        return SchedulerOutput(STEP_ID, scheduled, new, [])

    def _pictures(self, rows: Rows) -> tuple[PlacedImage, ...]:
        """Black ones. Their digests are nobody's and never come again: each is encoded, and none is taken for another.

        What is made of them where nothing is launched is no picture's.
        """
        if self._picture_size is None:
            return ()
        height, width, size = self._picture_size
        images = [
            Image(height, width, bytes(3 * height * width), f"warm-up {next(self._picture_numbers)}".encode())
            for _ in range(rows.num_pictures)
        ]
        return tuple(PlacedImage(image, rows.num_cached + index * size, size) for index, image in enumerate(images))

    def _scheduled(self, name: str, rows: Rows) -> ScheduledRequest:
        num_tokens = rows.num_cached + rows.num_new + rows.num_next_drafts
        num_blocks = -(-num_tokens // self._block_size)
        return ScheduledRequest(
            name,
            rows.num_cached,
            rows.num_new,
            [[NO_SLOT] if spec.in_slots else [self._spare_block] * num_blocks for spec in self._groups],
            1 + rows.num_drafts,
            () if self._drafts_by_model else (0,) * rows.num_drafts,
            rows.num_next_drafts,
        )

    def _masks(self, step: SchedulerOutput) -> Masks:
        words = np.full(-(-self._vocab_size // 32), -1, dtype=np.int32)
        return {request.request_id: words for request in step.scheduled}
