"""`Pooler`: one vector from the hidden states of a prompt, which may take several steps, or scores of labels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom_core.messages import Pooling, SchedulerOutput
from atom_core.worker.steps.batch import ModelInput


class Pooler:
    """Adds up hidden states of the prompts that are embedded or classified; one for each worker.

    Args:
        classify: ``[n, D] -> [n, labels]``, the model's head; None where it has none.
    """

    def __init__(self, classify: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._classify = classify
        self._open: dict[str, tuple[Pooling, int]] = {}
        self._sums: dict[str, torch.Tensor] = {}

    def update(self, step: SchedulerOutput) -> bool:
        """Forget the requests that `step` drops and take in new ones; whether any that is left has pooling."""
        for request_id in step.dropped_request_ids:
            self._open.pop(request_id, None)
            self._sums.pop(request_id, None)
        for request in step.new_requests:
            if request.pooling is not None:
                self._open[request.request_id] = (request.pooling, request.num_prompt_tokens)
        return bool(self._open)

    def pool(self, step: SchedulerOutput, batch: ModelInput, hidden_TD: torch.Tensor) -> dict[int, torch.Tensor]:
        """Take a step's hidden states, after `update`: a float32 vector for each prompt that it completes, by index."""
        pooled: dict[int, torch.Tensor] = {}
        classified: list[int] = []
        for index, scheduled in enumerate(step.scheduled):
            if scheduled.request_id not in self._open:
                continue
            pooling, num_prompt_tokens = self._open[scheduled.request_id]
            states_TD = hidden_TD[int(batch.rows.query_starts[index]) : int(batch.rows.query_starts[index + 1])]
            total_D = self._take(scheduled.request_id, pooling, states_TD, is_first=scheduled.num_computed_tokens == 0)
            if scheduled.num_computed_tokens + scheduled.num_new_tokens < num_prompt_tokens:
                continue
            if pooling.kind == "mean":
                total_D = total_D / num_prompt_tokens
            if pooling.classifies:
                classified.append(index)
            elif pooling.normalizes:
                total_D = torch.nn.functional.normalize(total_D, dim=0)
            pooled[index] = total_D.float()
        if classified and self._classify is not None:
            rows_nD = torch.stack([pooled[index] for index in classified]).to(hidden_TD.dtype)
            pooled |= dict(zip(classified, self._classify(rows_nD).float(), strict=True))
        return pooled

    def _take(self, request_id: str, pooling: Pooling, states_TD: torch.Tensor, *, is_first: bool) -> torch.Tensor:
        """What is gathered of a prompt so far: in double precision, so that the chunks of a long one do not show."""
        if pooling.kind == "last":
            return states_TD[-1].double()
        if pooling.kind == "cls":
            if is_first:
                self._sums[request_id] = states_TD[0].double()
            return self._sums[request_id]
        total_D = states_TD.sum(dim=0, dtype=torch.float64)
        earlier_D = self._sums.get(request_id)
        self._sums[request_id] = total_D = total_D if earlier_D is None else earlier_D + total_D
        return total_D
