"""The request of each row of a step, and how much it sees, as Triton finds them without the host.

Shapes: T rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from atom_kernels.attention.index.rows import RowsOfRequests
from atom_kernels.triton.launch import launch

if TYPE_CHECKING:
    from atom_kernels.protocols import BatchGeometry

_BLOCK_T, _BLOCK_R = 64, 128
# More positions than any request has.
_ENDLESS = 1 << 30


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_rows", "num_requests"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"],
)
def rows_kernel(
    query_start_loc_ptr, seq_lens_ptr, requests_ptr, visible_ptr, num_rows, num_requests,
    LIMIT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One program `BLOCK_T` rows."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    request = tl.zeros([BLOCK_T], tl.int32)
    for at in range(0, num_requests, BLOCK_R):
        nth = at + tl.arange(0, BLOCK_R)
        ends = tl.load(query_start_loc_ptr + 1 + nth, mask=nth < num_requests, other=2147483647)
        # A request without rows ends where the one before it does.
        request += tl.sum((ends[None, :] <= rows[:, None]).to(tl.int32), axis=1)
    present = request < num_requests
    end = tl.load(query_start_loc_ptr + 1 + request, mask=present, other=0)
    length = tl.load(seq_lens_ptr + request, mask=present, other=0)
    visible = tl.where(present, tl.maximum(tl.minimum(length - end + rows + 1, LIMIT), 0), 0)
    tl.store(requests_ptr + rows, tl.where(present, request, 0), mask=rows < num_rows)
    tl.store(visible_ptr + rows, visible, mask=rows < num_rows)


def rows_of_requests(step: BatchGeometry, limit: int = _ENDLESS) -> RowsOfRequests:
    """The rows of a dense step; launched plainly, see `atom_kernels.triton.support`."""
    numbers = torch.empty((2, step.num_tokens), dtype=torch.int32, device=step.seq_lens.device)
    launch(
        rows_kernel, (-(-step.num_tokens // _BLOCK_T),),
        step.query_start_loc, step.seq_lens, *numbers, step.num_tokens, step.num_reqs,
        LIMIT=limit, BLOCK_T=_BLOCK_T, BLOCK_R=_BLOCK_R, num_warps=4,
    )  # fmt: skip
    return RowsOfRequests(*numbers)
