"""The shares of a step's decodes on the host: buffers, and the launch that fills them; see `schedule`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.triton.configs import num_programs
from atom_kernels.attention.triton.schedule import share_apart, share_evenly
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

if TYPE_CHECKING:
    from atom_kernels.attention.triton.launch import PagedKernels
    from atom_kernels.protocols import BatchGeometry

# The ranges of a request whose result must not depend on its neighbors.
_OWN_RANGES = 16
_BLOCK_J, _BLOCK_R = 32, 256


@dataclass(frozen=True)
class DecodeShares:
    """Who reads which keys in one step, and room for what is merged; every layer of a plan takes the same.

    Attributes:
        rows: the rows of a piece that are kept: tokens of a request times heads of a group, a power of two.
        ranges, requests: int32 ``[num_ranges, 3]`` and ``[num_decodes, 2]``, written on the device.
        arrivals: int32 ``[num_decodes, num_kv_heads]``, zeros between kernels.
        sums, stats: float32 ``[2 * num_ranges, num_kv_heads, rows, value_dim]`` and ``[..., rows, 2]``.
    """

    rows: int
    ranges: torch.Tensor
    requests: torch.Tensor
    arrivals: torch.Tensor
    sums: torch.Tensor
    stats: torch.Tensor

    @property
    def num_ranges(self) -> int:
        return self.ranges.shape[0]


def share_decodes(kernels: PagedKernels, step: BatchGeometry) -> DecodeShares:
    """Shares for the decodes of a dense step."""
    device, num_decodes = step.seq_lens.device, step.num_decodes
    num_ranges = max(1, num_programs(kernels.decode, device) // kernels.num_groups)
    if kernels.batch_invariant:
        num_ranges = num_decodes * _OWN_RANGES
    rows = power_of_two(kernels.group * step.max_decode_len)
    numbers = torch.empty(3 * num_ranges + 2 * num_decodes, dtype=torch.int32, device=device)
    pieces = (2 * num_ranges, kernels.num_groups, rows)
    shares = DecodeShares(
        rows=rows,
        ranges=numbers[: 3 * num_ranges].view(num_ranges, 3),
        requests=numbers[3 * num_ranges :].view(num_decodes, 2),
        arrivals=torch.empty((num_decodes, kernels.num_groups), dtype=torch.int32, device=device),
        sums=torch.empty((*pieces, kernels.head_dim), dtype=torch.float32, device=device),
        stats=torch.empty((*pieces, 2), dtype=torch.float32, device=device),
    )
    arguments = (step.query_start_loc, step.seq_lens, shares.ranges, shares.requests, shares.arrivals, num_decodes)
    rules = {"NUM_KV_HEADS": kernels.num_groups, "WINDOW": kernels.window, "BLOCK_N": kernels.decode.block_n}
    if kernels.batch_invariant:
        launch(share_apart, (num_decodes,), *arguments, **rules, RANGES=_OWN_RANGES, num_warps=1)
    else:
        grid = (-(-num_ranges // _BLOCK_J),)
        launch(share_evenly, grid, *arguments, num_ranges, **rules, BLOCK_J=_BLOCK_J, BLOCK_R=_BLOCK_R, num_warps=8)
    return shares
