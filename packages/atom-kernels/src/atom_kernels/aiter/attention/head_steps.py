"""Norms of heads and their rotation by AITER, each as a kernel of its own, which leaves its inputs alone.

Shapes: T tokens, H heads, D head_dim, R rotary_dim.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import rotary_halves

# AITER's names for pairs of halves and pairs of neighbors.
_NEOX, _GPT_J = 0, 1


class HeadSteps:
    """See the module's docstring."""

    def norm(self, x_THD: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of each head."""
        rows = x_THD.reshape(-1, x_THD.shape[-1])
        return self._norm(rows, weight.to(x_THD.dtype), eps).view(x_THD.shape)

    def rotate(
        self,
        q_THD: torch.Tensor,
        k_TKD: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        interleaved: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first R elements of each head turned by the angles of `table` ``[positions, R]``; new tensors."""
        q_THD, k_TKD = (x.clone(memory_format=torch.contiguous_format) for x in (q_THD, k_TKD))
        rotary_dim = table.shape[1]
        cos, sin = (half[:, None, None] for half in rotary_halves(table, q_THD.dtype))
        views = (x[None, :, :, :rotary_dim] for x in (q_THD, k_TKD))
        self._rotate(*views, cos, sin, positions[None], _GPT_J if interleaved else _NEOX)
        return q_THD, k_TKD

    @cached_property
    def _norm(self) -> Any:
        return library().bind("rmsnorm2d_fwd", "input", "weight", "epsilon")

    @cached_property
    def _rotate(self) -> Any:
        return library().bind(
            "rope_cached_positions_2c_fwd_inplace",
            "input_x", "input_y", "cos", "sin", "positions", "rotate_style",
            reuse_freqs_front_part=True,
            nope_first=False,
        )  # fmt: skip
