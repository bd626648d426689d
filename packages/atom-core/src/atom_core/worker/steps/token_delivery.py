"""`TokenDelivery`: sampled ids on their way to the host. Only `result` waits, in the thread that calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from atom_core.executor.protocol import PendingOutput, ReadyOutput
from atom_core.messages import ModelOutput

Report = Callable[[list[int]], ModelOutput]
"""Makes the results of a step out of the token ids of its rows."""


def deliver(sampled_n: torch.Tensor, report: Report) -> PendingOutput:
    """Results of a step whose int64 ids are sampled on the device: at once from a CPU, late from a GPU.

    The ids may be overwritten by what is launched after this call.
    """
    if sampled_n.device.type == "cpu":
        return ReadyOutput(report(sampled_n.tolist()))
    # Pinned memory comes from a pool that knows when the device has done with it.
    ids = torch.empty(sampled_n.shape, dtype=sampled_n.dtype, pin_memory=True)
    ids.copy_(sampled_n, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return LateOutput(ids, copied, report)


class Event(Protocol):
    """Something that happens on the device."""

    def synchronize(self) -> None: ...


class LateOutput:
    """Ids that are in `ids`, on the host, once `copied` has happened."""

    def __init__(self, ids: torch.Tensor, copied: Event, report: Report) -> None:
        self._ids, self._copied, self._report = ids, copied, report

    def result(self) -> ModelOutput:
        """Wait for the device, and report; raises what the device failed with."""
        self._copied.synchronize()
        return self._report(self._ids.tolist())
