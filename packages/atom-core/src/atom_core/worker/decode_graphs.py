"""`DecodeGraphs`: decode steps captured once for each batch size, and replayed with a launch or two."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atom_core.worker.cuda_capture import Capture, Replayable, free_memory
from atom_core.worker.device_inputs import DeviceInputs
from atom_core.worker.input_batch import ModelInput, StepRows

logger = logging.getLogger(__name__)

RunModel = Callable[[ModelInput], torch.Tensor]
"""Float32 logits ``[n, vocab]`` of a batch whose rows all sample."""
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""``(logits [n, vocab], slots [n], positions [n], filters) -> int64 [n]``: draws tokens, and appends them."""


@dataclass(frozen=True)
class CapturedSize:
    """The graphs of one batch size.

    Attributes:
        model: writes the logits.
        samplers: write the ids, by whether any row filters tokens.
    """

    model: Replayable
    samplers: dict[bool, Replayable]


class DecodeGraphs:
    """Graphs over the buffers of `inputs`; all share their memory, since one runs at a time.

    Args:
        inputs: builds the batches.
        run_model, draw: what is captured.
        sizes: batch sizes, in rising order; a batch takes the next larger one, padded.
        max_seq_len: of a request, ever: graphs hold for every length.
        vocab_size: of the logits.
        capture: makes the graphs.
    """

    def __init__(
        self,
        inputs: DeviceInputs,
        *,
        run_model: RunModel,
        draw: Draw,
        sizes: Sequence[int],
        max_seq_len: int,
        vocab_size: int,
        capture: Capture,
    ) -> None:
        self._inputs, self._run_model, self._draw = inputs, run_model, draw
        self._max_seq_len = max_seq_len
        self._sizes = list(sizes)
        self._logits = torch.empty(self._sizes[-1], vocab_size, dtype=torch.float32, device=inputs.device)
        self._ids = torch.empty(self._sizes[-1], dtype=torch.int64, device=inputs.device)
        self._captured: dict[int, CapturedSize] = {}
        self._capture = capture

    def size_for(self, num_reqs: int) -> int | None:
        """The size that a batch is padded to; None where it is larger than all."""
        place = bisect.bisect_left(self._sizes, num_reqs)
        return self._sizes[place] if place < len(self._sizes) else None

    @property
    def is_complete(self) -> bool:
        """Whether every size has been captured."""
        return len(self._captured) == len(self._sizes)

    def capture_next(self) -> None:
        """Capture the largest size that is left: smaller ones fit into its memory."""
        size = next(size for size in reversed(self._sizes) if size not in self._captured)
        self._captured[size] = self._capture_size(size)

    def capture_all(self) -> None:
        """Capture what is left, and log what it took."""
        if self.is_complete:
            return
        started, free = time.perf_counter(), free_memory()
        while not self.is_complete:
            self.capture_next()
        used = (free - free_memory()) / (1 << 20)
        logger.info(
            "captured decode graphs of %d sizes in %.1f s, %.0f MiB",
            len(self._sizes),
            time.perf_counter() - started,
            used,
        )

    def replay_model(self, size: int) -> torch.Tensor:
        """Logits ``[size, vocab]`` of the batch that the inputs were filled with."""
        self._captured[size].model.replay()
        return self._logits[:size]

    def replay_sampler(self, size: int, filters: bool) -> torch.Tensor:
        """Int64 ids ``[size]``, drawn from the logits and appended to the histories.

        Args:
            filters: a row has top-k, top-p or min-p.
        """
        self._captured[size].samplers[filters].replay()
        return self._ids[:size]

    def _capture_size(self, size: int) -> CapturedSize:
        self._inputs.fill(NO_ROWS, num_padding=size)
        batch = self._inputs.view(
            NO_ROWS,
            num_reqs=size,
            num_tokens=size,
            num_decodes=size,
            num_samples=size,
            max_query_len=1,
            max_seq_len=self._max_seq_len,
        )
        logits, ids = self._logits[:size], self._ids[:size]

        def run_model() -> None:
            logits.copy_(self._run_model(batch))

        def draw(filters: bool) -> None:
            ids.copy_(self._draw(logits, batch.sample_slots, batch.sample_positions, filters))

        model = self._capture(run_model)
        samplers = {filters: self._capture(lambda filters=filters: draw(filters)) for filters in (False, True)}
        return CapturedSize(model, samplers)


_NOTHING = np.zeros(0, dtype=np.int64)
NO_ROWS = StepRows(_NOTHING, _NOTHING, _NOTHING, np.zeros(1, dtype=np.int64), _NOTHING)
