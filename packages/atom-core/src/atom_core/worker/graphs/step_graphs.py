"""`StepGraphs`: steps captured once for each shape of a batch, and replayed with a launch or two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from atom_core.worker.devices.upload import upload
from atom_core.worker.graphs.cuda_capture import Capture, CaptureCost, Captured
from atom_core.worker.graphs.shapes import GraphShape, GraphShapes
from atom_core.worker.model.engine_model import LayerStates
from atom_core.worker.sampling.sampler import Drawing
from atom_core.worker.steps.batch import NO_ROWS, ModelInput, StepRows
from atom_core.worker.steps.device_inputs import DeviceInputs

logger = logging.getLogger(__name__)

RunModel = Callable[[ModelInput], tuple[torch.Tensor, ...]]
"""Float32 logits of the n rows of a batch that sample, and whatever else is wanted of it."""
Draw = Callable[[torch.Tensor, ModelInput, Drawing], tuple[torch.Tensor]]
"""``(logits, batch, drawing) -> int64 [n]``: draws tokens, appends them, and verifies drafts."""
Follow = Callable[[ModelInput, LayerStates, torch.Tensor, torch.Tensor, int], tuple[torch.Tensor]]
"""``(batch, states, sampled [n], numbers [requests], number) -> int64 [requests, number]``: a draft model behind a step
of decodes, of which each request has room for its own number of drafts."""


class StepGraphs:
    """Graphs over the buffers of `inputs`; all share their memory, since one shape runs at a time.

    Args:
        inputs: builds the batches.
        run_model, draw, follow: what is captured; nobody drafts without `follow`.
        drawings: the ways to draw, each of which is captured.
        shapes: the shapes of the batches. Every row of them samples: rows that need not, for padding.
        num_drafts: how many are made behind a step for each request at most.
        max_num_samples: tokens that a step with all of these drafts samples at most.
        max_seq_len: the most tokens that a request ever has: graphs hold for every length.
        capture: makes the graphs.
    """

    def __init__(
        self,
        inputs: DeviceInputs,
        *,
        run_model: RunModel,
        draw: Draw,
        drawings: Sequence[Drawing] = (Drawing.ALL, Drawing.FILTERED),
        follow: Follow | None = None,
        num_drafts: int = 0,
        max_num_samples: int = 0,
        shapes: GraphShapes,
        max_seq_len: int,
        capture: Capture,
    ) -> None:
        self._inputs, self._run_model, self._draw, self._follow = inputs, run_model, draw, follow
        self._drawings = drawings
        self._num_drafts, self._max_num_samples = num_drafts, max_num_samples
        self._shapes, self._max_seq_len, self._capture = shapes, max_seq_len, capture
        self._models: dict[GraphShape, Captured] = {}
        self._samplers: dict[tuple[GraphShape, Drawing], Captured] = {}
        self._drafters: dict[tuple[GraphShape, int], Captured] = {}
        self._sampled = torch.zeros(max((shape.num_tokens for shape in shapes.all), default=0), dtype=torch.int64)
        self._sampled = self._sampled.to(inputs.device)
        # The drafts that each request has room for, and what of it the device has.
        self._numbers = np.zeros(max((shape.num_reqs for shape in shapes.all), default=0), dtype=np.int64)
        self._device_numbers = torch.from_numpy(self._numbers).to(inputs.device, copy=True)
        self._cost = CaptureCost()
        # What the last step without a graph would have run in.
        self._awaited: GraphShape | None = None

    def shape_of(self, rows: StepRows) -> GraphShape | None:
        """The shape of the graph for a step; None where no graph is for it, or none was captured yet."""
        shape = self._shapes.of_step(rows)
        if shape in self._models:
            return shape
        self._awaited = shape
        return None

    @property
    def is_awaited(self) -> bool:
        """Whether a step came whose graph was not captured yet."""
        return self._awaited is not None and self._awaited not in self._models

    def capture_next(self) -> bool:
        """Capture a shape that is left; False where none is.

        The largest is first, since smaller ones fit into its memory, then what a step would have needed.
        """
        left = [shape for shape in self._shapes.all if shape not in self._models]
        if not left:
            return False
        shape = self._awaited if self._models and self._awaited in left else left[0]
        with self._cost.count():
            self._capture_shape(shape)
        if len(self._models) == len(self._shapes.all):
            logger.info("captured graphs of %d batch shapes in %s", len(self._models), self._cost.describe())
        return True

    def forget(self) -> None:
        """Let go of what was captured, and capture no more: no step has a graph."""
        self._shapes, self._awaited = GraphShapes(), None
        for captured in (self._models, self._samplers, self._drafters):
            captured.clear()

    def replay_model(self, shape: GraphShape) -> tuple[torch.Tensor, ...]:
        """What `run_model` gives, of the batch that the inputs were filled with: logits of `shape.num_samples` rows."""
        self._models[shape].replay()
        return self._models[shape].outputs

    def replay_sampler(self, shape: GraphShape, drawing: Drawing) -> torch.Tensor:
        """Int64 ids ``[shape.num_samples]``, drawn from the logits and appended to the histories."""
        self._samplers[shape, drawing].replay()
        return self._samplers[shape, drawing].outputs[0]

    def replay_drafter(
        self, shape: GraphShape, sampled_n: torch.Tensor, numbers: np.ndarray, places: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Drafts ``[requests of the shape, most of numbers or more]`` behind the step that was sampled last.

        Args:
            sampled_n: int64, what was sampled at its own places.
            numbers: int64, drafts that each request has room for; those behind them mean nothing.
            places: see `ModelInput`.

        Returns:
            None for steps behind which no drafts are captured: those with prompts.
        """
        number = next((number for number in self._numbers_behind(shape) if number >= numbers.max()), None)
        if number is None:
            return None
        drafter = self._drafters[shape, number]
        if places is None:
            self._sampled[: len(sampled_n)].copy_(sampled_n)
        else:
            # Whatever stands before a request's own tokens stays.
            self._sampled[: shape.num_samples].zero_()
            self._sampled[places] = sampled_n
        self._tell_numbers(numbers)
        drafter.replay()
        return drafter.outputs[0]

    def _tell_numbers(self, numbers: np.ndarray) -> None:
        """Let the device have the numbers, behind which come zeros: padding has no room for drafts."""
        padded = np.zeros_like(self._numbers)
        padded[: len(numbers)] = numbers
        if not np.array_equal(padded, self._numbers):
            self._numbers = padded
            (numbers_R,) = upload(self._device_numbers.device, padded)
            self._device_numbers.copy_(numbers_R)

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
        batch = replace(batch, offsets=self._inputs.offsets(shape.num_tokens))
        model = self._capture(partial(self._run_model, batch))
        logits_nR = model.outputs[0]
        samplers = {each: self._capture(partial(self._draw, logits_nR, batch, each)) for each in self._drawings}
        drafters = self._capture_drafters(batch, shape, model.outputs[1:])
        for captured in (model, *samplers.values(), *drafters.values()):
            captured.share()
        self._samplers |= {(shape, drawing): sampler for drawing, sampler in samplers.items()}
        self._drafters |= {(shape, number): drafter for number, drafter in drafters.items()}
        self._models[shape] = model

    def _capture_drafters(
        self, batch: ModelInput, shape: GraphShape, states: Sequence[torch.Tensor]
    ) -> dict[int, Captured]:
        """Capture the draft model's passes: a graph for each number of drafts."""
        if self._follow is None:
            return {}
        self._sampled.zero_()
        layer_states, sampled_n = LayerStates(states[0], states[1:]), self._sampled[: shape.num_samples]
        numbers_W = self._device_numbers[: shape.num_reqs]
        return {
            number: self._capture(partial(self._follow, batch, layer_states, sampled_n, numbers_W, number))
            for number in self._numbers_behind(shape)
        }

    def _numbers_behind(self, shape: GraphShape) -> list[int]:
        """The numbers of drafts that are captured behind a step: as many as the next one has room for, one, to see how
        often it is right, and all, for what comes between."""
        if self._follow is None or not shape.is_decode:
            return []
        usual = min(self._num_drafts, max(self._max_num_samples // shape.num_reqs - 1, 1))
        return sorted({*range(usual + 1), self._num_drafts})
