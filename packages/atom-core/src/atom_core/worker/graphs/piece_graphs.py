"""`PieceGraphs`: a model's layers captured between attention, for some numbers of tokens."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from functools import partial

import torch

from atom_core.worker.graphs.cuda_capture import Capture, CaptureCost, Captured
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.model.dummy_steps import dummy_geometry
from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.steps.batch import NO_ROWS, ModelInput, StepRows
from atom_core.worker.steps.device_inputs import DeviceInputs

logger = logging.getLogger(__name__)


class PieceGraphs:
    """Gives what `model.forward` gives, for batches of any requests, decodes and prompts mixed.

    Attention runs between the graphs, on the batch as it is; all else on a captured number of tokens.

    Args:
        inputs: builds the batches.
        model: what is captured.
        sizes: numbers of tokens.
        capture: makes the graphs, over memory that all share: one size runs at a time.
    """

    def __init__(self, inputs: DeviceInputs, model: EngineModel, sizes: Sequence[int], capture: Capture) -> None:
        self._inputs, self._model, self._capture = inputs, model, capture
        self._sizes = sorted(sizes)
        self._captured: dict[int, Captured] = {}
        self._cost = CaptureCost()

    def capture_next(self) -> bool:
        """Capture the largest size that is left, since smaller ones fit into its memory; False where none is left."""
        left = len(self._sizes) - len(self._captured)
        if not left:
            return False
        with self._cost.count():
            self._capture_size(self._sizes[left - 1])
        if left == 1:
            logger.info("captured pieces for %d numbers of tokens in %s", len(self._sizes), self._cost.describe())
        return True

    @property
    def has_largest(self) -> bool:
        """Whether the memory that all sizes share is there, or none is needed."""
        return not self._sizes or bool(self._captured)

    def forget(self) -> None:
        """Let go of what was captured, and capture no more: no step has pieces."""
        self._sizes = []
        self._captured.clear()

    def shape_of(self, rows: StepRows) -> GraphShape | None:
        """The shape to which a step is padded; None where its size is not captured, or there is none.

        Tokens that are left over go to a request of padding, which attention is not told of.
        """
        place = bisect.bisect_left(self._sizes, rows.num_tokens)
        if place == len(self._sizes) or self._sizes[place] not in self._captured:
            return None
        return GraphShape(rows.num_reqs + 1, self._sizes[place])

    def replay(self, batch: ModelInput, shape: GraphShape) -> LayerStates:
        """The states of the batch that was built last, to that shape."""
        captured = self._captured[shape.num_tokens]
        with self._model.mixing(batch.geometries):
            captured.replay()
        hidden_TD, *aux = captured.outputs
        return LayerStates(hidden_TD, aux).of_tokens(batch.rows.num_tokens)

    def _capture_size(self, size: int) -> None:
        self._inputs.fill(NO_ROWS, GraphShape(1, size))
        input_ids, positions = self._inputs.tokens(size)
        geometry = dummy_geometry([size], self._inputs.block_size, str(self._inputs.device))
        with self._model.mixing((geometry,) * self._model.num_groups):
            run = partial(_states, self._model, input_ids, positions, self._inputs.offsets(size))
            captured = self._capture(run, in_pieces=True)
        captured.share()
        self._captured[size] = captured


def _states(
    model: EngineModel, input_ids: torch.Tensor, positions: torch.Tensor, offsets: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    states = model.run_layers(input_ids, positions if offsets is None else positions + offsets)
    return (states.hidden_TD, *states.aux)
