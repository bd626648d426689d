"""`StepGraphs`: steps captured once for each shape of a batch, and replayed with a launch or two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from atom_core.speculation.config import DRAFTING_REQS
from atom_core.worker.graphs.cuda_capture import Capture, CaptureCost, Captured
from atom_core.worker.graphs.shapes import GraphShape, GraphShapes
from atom_core.worker.model.engine_model import LayerStates
from atom_core.worker.steps.batch import NO_ROWS, ModelInput, StepRows
from atom_core.worker.steps.device_inputs import DeviceInputs

logger = logging.getLogger(__name__)

RunModel = Callable[[ModelInput], tuple[torch.Tensor, ...]]
"""Float32 logits ``[n, vocab]`` of the rows of a batch that sample, and whatever else is wanted of it."""
Draw = Callable[[torch.Tensor, ModelInput, bool], tuple[torch.Tensor]]
"""``(logits [n, vocab], batch, filters) -> int64 [n]``: draws tokens, appends them, and verifies drafts."""
Follow = Callable[[ModelInput, LayerStates, torch.Tensor, int], tuple[torch.Tensor]]
"""``(batch, states, sampled [n], number) -> int64 [requests, number]``: a draft model behind a step of decodes."""


class StepGraphs:
    """Graphs over the buffers of `inputs`; all share their memory, since one shape runs at a time.

    Args:
        inputs: builds the batches.
        run_model, draw, follow: what is captured; nobody drafts without `follow`.
        shapes: the shapes of the batches. Every row of them samples: rows that need not, into the row for padding.
        num_drafts: how many are made behind a step at most.
        max_seq_len: the most tokens that a request ever has: graphs hold for every length.
        capture: makes the graphs.
    """

    def __init__(
        self,
        inputs: DeviceInputs,
        *,
        run_model: RunModel,
        draw: Draw,
        follow: Follow | None = None,
        num_drafts: int = 0,
        shapes: GraphShapes,
        max_seq_len: int,
        capture: Capture,
    ) -> None:
        self._inputs, self._run_model, self._draw, self._follow = inputs, run_model, draw, follow
        self._num_drafts = num_drafts
        self._shapes, self._max_seq_len, self._capture = shapes, max_seq_len, capture
        self._models: dict[GraphShape, Captured] = {}
        self._samplers: dict[tuple[GraphShape, bool], Captured] = {}
        self._drafters: dict[tuple[GraphShape, int], Captured] = {}
        self._sampled = torch.zeros(max(shape.num_tokens for shape in shapes.all), dtype=torch.int64)
        self._sampled = self._sampled.to(inputs.device)
        self._cost = CaptureCost()

    def shape_of(self, rows: StepRows) -> GraphShape | None:
        """The shape of the graph for a step; None where no graph is for it, or none was captured yet."""
        shape = self._shapes.of_step(rows)
        return shape if shape in self._models else None

    def capture_next(self) -> bool:
        """Capture the largest shape that is left, since smaller ones fit into its memory; False where none is left."""
        shape = next((shape for shape in self._shapes.all if shape not in self._models), None)
        if shape is None:
            return False
        with self._cost.count():
            self._capture_shape(shape)
        if len(self._models) == len(self._shapes.all):
            logger.info("captured graphs of %d batch shapes in %s", len(self._models), self._cost.describe())
        return True

    def replay_model(self, shape: GraphShape) -> tuple[torch.Tensor, ...]:
        """What `run_model` gives, of the batch that the inputs were filled with: logits of `shape.num_samples` rows."""
        self._models[shape].replay()
        return self._models[shape].outputs

    def replay_sampler(self, shape: GraphShape, *, filters: bool) -> torch.Tensor:
        """Int64 ids ``[shape.num_samples]``, drawn from the logits and appended to the histories.

        Args:
            filters: a row has top-k, top-p or min-p.
        """
        self._samplers[shape, filters].replay()
        return self._samplers[shape, filters].outputs[0]

    def replay_drafter(self, shape: GraphShape, sampled_n: torch.Tensor, number: int) -> torch.Tensor | None:
        """Drafts ``[requests of the shape, number]`` behind the step that was sampled last; None without a graph.

        Args:
            sampled_n: int64, of the places that are not padding.
        """
        drafter = self._drafters.get((shape, number))
        if drafter is None:
            return None
        self._sampled[: len(sampled_n)].copy_(sampled_n)
        drafter.replay()
        return drafter.outputs[0]

    def _capture_shape(self, shape: GraphShape) -> None:
        self._inputs.fill(NO_ROWS, shape)
        batch = self._inputs.view(
            NO_ROWS,
            num_reqs=shape.num_reqs,
            num_tokens=shape.num_tokens,
            num_decodes=shape.num_reqs if shape.is_decode else 0,
            num_samples=shape.num_samples,
            max_query_len=shape.tokens_each if shape.is_decode else shape.num_tokens,
            max_seq_len=self._max_seq_len,
            max_decode_len=shape.tokens_each,
            graph=shape,
        )
        model = self._capture(partial(self._run_model, batch))
        logits_nV = model.outputs[0]
        samplers = {filters: self._capture(partial(self._draw, logits_nV, batch, filters)) for filters in (False, True)}
        drafters = self._capture_drafters(batch, shape, model.outputs[1:])
        for captured in (model, *samplers.values(), *drafters.values()):
            captured.share()
        self._samplers |= {(shape, filters): sampler for filters, sampler in samplers.items()}
        self._drafters |= {(shape, number): drafter for number, drafter in drafters.items()}
        self._models[shape] = model

    def _capture_drafters(
        self, batch: ModelInput, shape: GraphShape, states: Sequence[torch.Tensor]
    ) -> dict[int, Captured]:
        """By the number of drafts: none for many requests, which do not have any."""
        if self._follow is None or not shape.is_decode:
            return {}
        most = self._num_drafts if shape.num_reqs <= DRAFTING_REQS else 0
        self._sampled.zero_()
        sampled_n, states = self._sampled[: shape.num_samples], LayerStates(states[0], states[1:])
        return {
            number: self._capture(partial(self._follow, batch, states, sampled_n, number)) for number in range(most + 1)
        }
