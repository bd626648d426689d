"""`Pooler`: one vector from the hidden states of a prompt, which may take several steps, or scores of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from atom_core.messages import Pooling, PoolingKind, SchedulerOutput
from atom_core.worker.devices.upload import upload
from atom_core.worker.steps.batch import StepRows

# Hidden states are summed so many columns at once: a large step in double precision would take more than its layers.
COLUMNS = 512


class Pooled(NamedTuple):
    """What a step gives for those prompts that it completes and that are pooled alike.

    Attributes:
        indices: where they stand in the batch.
        rows: float32 on the device, ``[n, D]`` vectors, or ``[n, labels]`` where they are classified.
    """

    indices: Sequence[int]
    rows: torch.Tensor


class Pooler:
    """Pools hidden states, those of all prompts of a step together; one for each worker.

    Args:
        classify: ``[n, D] -> [n, labels]``, the model's head; None where it has none.
    """

    def __init__(self, classify: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._classify = classify
        self._open: dict[str, tuple[Pooling, int]] = {}
        # What earlier steps had of a prompt: in double precision, so that the chunks of a long one do not show.
        self._earlier: dict[str, torch.Tensor] = {}

    def update(self, step: SchedulerOutput) -> bool:
        """Forget the requests that `step` drops and take in new ones; whether any that is left has pooling."""
        for request_id in step.dropped_request_ids:
            self._open.pop(request_id, None)
            self._earlier.pop(request_id, None)
        for request in step.new_requests:
            if request.pooling is not None:
                self._open[request.request_id] = (request.pooling, request.num_prompt_tokens)
        return bool(self._open)

    def pool(self, step: SchedulerOutput, rows: StepRows, hidden_TD: torch.Tensor) -> list[Pooled]:
        """Take a step's hidden states, after `update`: what they give of the prompts that it completes."""
        alike: dict[Pooling, list[int]] = {}
        for index, scheduled in enumerate(step.scheduled):
            if (found := self._open.get(scheduled.request_id)) is not None:
                alike.setdefault(found[0], []).append(index)
        pooled = [self._pool(pooling, indices, step, rows, hidden_TD) for pooling, indices in alike.items()]
        return [each for each in pooled if each.indices]

    def _pool(
        self, pooling: Pooling, indices: list[int], step: SchedulerOutput, rows: StepRows, hidden_TD: torch.Tensor
    ) -> Pooled:
        way, totals = _WAYS[pooling.kind], [self._open[step.scheduled[index].request_id][1] for index in indices]
        members, counts, lengths = upload(hidden_TD.device, np.array(indices), np.array(totals), rows.lengths)
        gathered_nD = way.gather(hidden_TD, lengths)[members]
        completed = []
        for place, (index, total) in enumerate(zip(indices, totals, strict=True)):
            scheduled = step.scheduled[index]
            is_complete = scheduled.num_computed_tokens + scheduled.num_new_tokens >= total
            if (earlier_D := self._earlier.get(scheduled.request_id)) is not None:
                gathered_nD[place] = way.join(earlier_D, gathered_nD[place])
            if is_complete:
                completed.append(place)
            else:
                self._earlier[scheduled.request_id] = gathered_nD[place].clone()
        vectors_nD = gathered_nD / counts[:, None] if way.is_divided else gathered_nD
        if len(completed) < len(indices):
            vectors_nD = vectors_nD[completed]
        if pooling.classifies and self._classify is not None:
            vectors_nD = self._classify(vectors_nD.to(hidden_TD.dtype))
        elif pooling.normalizes and not pooling.classifies:
            vectors_nD = torch.nn.functional.normalize(vectors_nD, dim=1)
        return Pooled([indices[place] for place in completed], vectors_nD.float())


class _Way(NamedTuple):
    """A kind of pooling.

    Attributes:
        gather: ``(hidden [T, D], lengths [R]) -> float64 [R, D]``, for each request of a step what its tokens give.
        join: what earlier steps and this one give together.
        is_divided: what is gathered is divided by the number of tokens.
    """

    gather: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    is_divided: bool = False


def _firsts(hidden_TD: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    return hidden_TD[lengths_R.cumsum(0) - lengths_R].double()


def _lasts(hidden_TD: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    return hidden_TD[lengths_R.cumsum(0) - 1].double()


def _sums(hidden_TD: torch.Tensor, lengths_R: torch.Tensor) -> torch.Tensor:
    """Each request's rows in their order, so that its sum does not depend on its neighbors."""
    # The lengths are known to be right: a look at them would wait for the device.
    sums = [
        torch.segment_reduce(columns.double(), "sum", lengths=lengths_R, unsafe=True)
        for columns in hidden_TD.split(COLUMNS, dim=1)
    ]
    return torch.cat(sums, dim=1) if len(sums) > 1 else sums[0]


_WAYS: dict[PoolingKind, _Way] = {
    "mean": _Way(_sums, torch.add, is_divided=True),
    "last": _Way(_lasts, lambda earlier, now: now),
    "cls": _Way(_firsts, lambda earlier, now: earlier),
}
