"""Sampled ids on their way to the host. Only who asks for the output of a step waits for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from atom_core.messages import ModelOutput
from atom_core.worker.runner import PendingOutput

Report = Callable[[list[int]], ModelOutput]
"""Makes the results of a step out of the token ids of its rows."""


class Event(Protocol):
    """Something that happens on the device."""

    def synchronize(self) -> None: ...


def deliver(sampled_n: torch.Tensor, report: Report) -> PendingOutput:
    """Results of a step whose int64 ids are sampled on the device: at once from a CPU, late from a GPU.

    The ids may be overwritten by what is launched after this call.
    """
    if sampled_n.device.type == "cpu":
        output = report(sampled_n.tolist())
        return lambda: output
    # Pinned memory comes from a pool that knows when the device has done with it.
    ids = torch.empty(sampled_n.shape, dtype=sampled_n.dtype, pin_memory=True)
    ids.copy_(sampled_n, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return partial(report_late, ids, copied, report)


def report_late(ids: torch.Tensor, copied: Event, report: Report) -> ModelOutput:
    """Wait until the ids are on the host, and report them; raises what the device failed with."""
    copied.synchronize()
    return report(ids.tolist())
