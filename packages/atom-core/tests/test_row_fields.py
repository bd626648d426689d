"""What the device is told of decodes, which are most steps, is what it would be told of any requests."""

from __future__ import annotations

import dataclasses

import numpy as np

from atom_core.messages import ScheduledRequest, SchedulerOutput
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.steps.batch import DecodeRows, StepRows
from atom_core.worker.steps.row_fields import RowFields

PADDING = 9


def decodes(**starts: int) -> StepRows:
    """One step, whose requests have the slots 3, 4, ..."""
    scheduled = [ScheduledRequest(name, start, 1, [], 1, ()) for name, start in starts.items()]
    slots = {name: 3 + index for index, name in enumerate(starts)}
    return StepRows.of(SchedulerOutput(0, scheduled, [], []), slots)


def test_decodes_of_any_number_are_told_as_other_requests_are():
    fields = RowFields(PADDING)
    # Fewer come after more: what was told of the last step must be gone.
    for starts in ({"a": 7, "b": 40, "c": 2}, {"a": 8}, {"d": 1, "e": 5}):
        rows = decodes(**starts)
        assert isinstance(rows, DecodeRows)
        as_any = StepRows(*(getattr(rows, field.name) for field in dataclasses.fields(StepRows)))
        for shape in (None, GraphShape(4, 4), GraphShape(4, 8, 2)):
            np.testing.assert_array_equal(fields.of(rows, shape), RowFields(PADDING).of(as_any, shape))
