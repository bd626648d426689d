"""`RowFields`: what the device is told of each request of a step, before it builds the batch."""

from __future__ import annotations

import numpy as np

from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.steps.batch import NO_ROWS, DecodeRows, StepRows

NUM_FIELDS = 8


class RowFields:
    """Makes them, padded to the shape of a graph.

    Args:
        padding_slot: the slot of requests that pad a batch.
    """

    def __init__(self, padding_slot: int) -> None:
        self._padding_slot = padding_slot
        # Decodes of nothing but padding, by the number of requests.
        self._decodes: dict[int, np.ndarray] = {}

    def of(self, rows: StepRows, shape: GraphShape | None) -> np.ndarray:
        """Int32 ``[NUM_FIELDS, requests]``, as `build_step_inputs` reads them."""
        if isinstance(rows, DecodeRows) and (shape is None or shape.num_reqs == shape.num_tokens):
            return self._of_decodes(rows, rows.num_reqs if shape is None else shape.num_reqs)
        num_reqs = rows.num_reqs
        fields = np.zeros((NUM_FIELDS, num_reqs if shape is None else shape.num_reqs), dtype=np.int32)
        slots, starts, lengths, firsts, num_samples, sample_rows, sample_slots, is_unsettled = fields
        slots[:num_reqs], slots[num_reqs:] = rows.slots, self._padding_slot
        num_repeated = num_repeated_of(rows, shape)
        starts[:num_reqs], lengths[:num_reqs] = rows.starts - num_repeated, rows.lengths + num_repeated
        if shape is not None and shape.is_decode:
            lengths[num_reqs:] = shape.tokens_each
        elif shape is not None and num_reqs < shape.num_reqs:
            lengths[num_reqs] = shape.num_tokens - rows.num_tokens
        np.cumsum(lengths[:-1], out=firsts[1:])
        num_samples[:num_reqs] = rows.num_samples + num_repeated
        np.cumsum(num_samples[:-1], out=sample_rows[1:])
        is_unsettled[:num_reqs] = rows.num_unsettled > 0
        sample_slots[:] = self._padding_slot
        sample_slots[rows.sampling] = rows.sampled_slots
        if shape is not None:
            pads = np.flatnonzero(num_samples == 0)
            sample_rows[pads] = num_samples.sum() + shape.tokens_each * np.arange(len(pads))
            num_samples[pads] = shape.tokens_each
        return fields

    def _of_decodes(self, rows: DecodeRows, size: int) -> np.ndarray:
        """Those of `size` decodes: they differ from padding in their slots and starts alone."""
        if size not in self._decodes:
            self._decodes[size] = self.of(NO_ROWS, GraphShape(size, size))
        fields, num_reqs = self._decodes[size].copy(), rows.num_reqs
        slots, starts, *_, sample_slots, _ = fields
        slots[:num_reqs] = sample_slots[:num_reqs] = rows.slots
        starts[:num_reqs] = rows.starts
        return fields


def num_repeated_of(rows: StepRows, shape: GraphShape | None) -> np.ndarray:
    """Tokens of each request that are computed again, so that all decodes with drafts have as many as their graph."""
    if shape is None or shape.tokens_each == 1:
        return np.zeros_like(rows.lengths)
    return shape.tokens_each - rows.lengths
