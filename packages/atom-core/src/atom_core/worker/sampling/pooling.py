"""`Pooler`: one vector of unit length from the hidden states of a prompt, which may take several steps."""

from __future__ import annotations

import torch

from atom_core.messages import Pooling, SchedulerOutput
from atom_core.worker.steps.batch import ModelInput


class Pooler:
    """Adds up hidden states of the prompts that are embedded; one for each worker.

    "mean" is the mean over all tokens of the prompt, "last" the state of its last token, "cls" that of its first.
    """

    def __init__(self) -> None:
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
        """Take a step's hidden states, after `update`: float32 ``[D]`` for each prompt that it completes, by index."""
        pooled: dict[int, torch.Tensor] = {}
        for index, scheduled in enumerate(step.scheduled):
            pooling, num_prompt_tokens = self._open.get(scheduled.request_id, (None, 0))
            if pooling is None:
                continue
            states_TD = hidden_TD[int(batch.rows.query_starts[index]) : int(batch.rows.query_starts[index + 1])]
            if pooling == "mean":
                # In double precision, so that the chunks of a long prompt do not show.
                total_D = states_TD.sum(dim=0, dtype=torch.float64)
                earlier_D = self._sums.get(scheduled.request_id)
                self._sums[scheduled.request_id] = total_D = total_D if earlier_D is None else earlier_D + total_D
            elif pooling == "cls":
                if scheduled.num_computed_tokens == 0:
                    self._sums[scheduled.request_id] = states_TD[0].double()
                total_D = self._sums[scheduled.request_id]
            else:
                total_D = states_TD[-1].double()
            if scheduled.num_computed_tokens + scheduled.num_new_tokens >= num_prompt_tokens:
                # The length of a sum and of a mean differ, but not their direction.
                pooled[index] = torch.nn.functional.normalize(total_D, dim=0).float()
        return pooled
