"""`TokenDelivery`: sampled ids on their way to the host. Only `result` waits, in the thread that calls it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from atom_core.executor.protocol import PendingOutput, ReadyOutput
from atom_core.messages import ModelOutput

Report = Callable[[list[int]], ModelOutput]
"""Makes the results of a step out of the token ids of its rows."""


class TokenDelivery:
    """Copies sampled ids to the host: at once from a CPU, behind the work that is queued on a GPU.

    Args:
        device: where ids are sampled.
        max_num_seqs: most ids of a step.
    """

    def __init__(self, device: str, max_num_seqs: int) -> None:
        self._device = device
        self._max_num_seqs = max_num_seqs
        # Buffers that no step uses. Steps are read late and in another thread, which hands them back.
        self._free: deque[torch.Tensor] = deque()

    def deliver(self, sampled_n: torch.Tensor, report: Report) -> PendingOutput:
        """Results to be read once the device has sampled int64 `sampled_n`, which may be overwritten after that."""
        if self._device == "cpu":
            return ReadyOutput(report(sampled_n.tolist()))
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = torch.empty(self._max_num_seqs, dtype=torch.int64, pin_memory=True)
        ids = buffer[: len(sampled_n)]
        ids.copy_(sampled_n, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return LateOutput(ids, copied, report, lambda: self._free.append(buffer))


class LateOutput:
    """Ids that are in `ids` on the host once `copied` has happened; `release` hands the memory back."""

    def __init__(
        self, ids: torch.Tensor, copied: torch.cuda.Event, report: Report, release: Callable[[], None]
    ) -> None:
        self._ids, self._copied, self._report, self._release = ids, copied, report, release

    def result(self) -> ModelOutput:
        """Wait for the device, and report; raises what the device failed with. To be called once."""
        self._copied.synchronize()
        token_ids = self._ids.tolist()
        self._release()
        return self._report(token_ids)
