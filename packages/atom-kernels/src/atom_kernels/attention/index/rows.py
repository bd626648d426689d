"""The request of each row of a step, and how much it sees. Shapes: T rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class RowsOfRequests:
    """Attributes:
    requests: int32 ``[T]``, whose row it is.
    visible: int32 ``[T]``, positions up to its own, or a limit if they are more; 0 for rows of no request.
    """

    requests: torch.Tensor
    visible: torch.Tensor


def rows_on_host(step: BatchGeometry) -> RowsOfRequests:
    """The rows of a dense step that belong to requests, found on the host."""
    starts = step.query_start_loc[: step.num_reqs + 1]
    requests = torch.repeat_interleave(torch.arange(step.num_reqs), starts.diff())
    behind = starts[1:][requests] - torch.arange(len(requests))
    return RowsOfRequests(requests.int(), (step.seq_lens[requests] - behind + 1).int())
