"""`AdapterInputs`: which adapters the tokens of captured decodes have."""

from __future__ import annotations

import numpy as np
import torch

from atom_core.worker.devices.upload import upload
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.steps.batch import StepRows
from atom_models.adapters.step import AdapterStep


class AdapterInputs:
    """The place of each token's adapter, in a buffer that captured graphs read; padding has none.

    Args:
        most_tokens: the most tokens that a captured decode has.
    """

    def __init__(self, most_tokens: int, device: torch.device) -> None:
        self._places = torch.zeros(most_tokens, dtype=torch.int64, device=device)

    def fill(self, step: AdapterStep, rows: StepRows, shape: GraphShape) -> None:
        """Write what the next replay reads: a request has as many tokens as its graph has for each."""
        if step.on_host is None:
            raise RuntimeError("a step that is captured cannot fill the buffer that it reads")
        of_tokens = np.zeros(shape.num_tokens, dtype=np.int64)
        of_tokens[: rows.num_reqs * shape.tokens_each] = np.repeat(
            step.on_host[rows.query_starts[:-1]], shape.tokens_each
        )
        (sent,) = upload(self._places.device, of_tokens)
        self._places[: shape.num_tokens].copy_(sent)

    def step(self, num_tokens: int) -> AdapterStep:
        """What captured work is told of its tokens."""
        return AdapterStep.captured(self._places[:num_tokens])
