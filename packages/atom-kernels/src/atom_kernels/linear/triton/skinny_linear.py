"""One weight and one configuration of the kernel of few rows, as what is called with rows."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.adapters.triton_backend import shrunk
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_weights import PLAIN, packing_of
from atom_kernels.linear.triton.precision import precision_of
from atom_kernels.linear.triton.rounded_rows import rounded_rows
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

# Columns of B that a program has in flight.
_RANKS_AT_ONCE = 16


class SkinnyLinear:
    """The kernel for one weight and one configuration; called with the inputs of `linear`.

    Splits of the inputs count their arrivals on the device, so that calls for one weight must follow each other. The
    counters of `num_rows` rows are kept, those of more are made for the call.
    """

    def __init__(self, problem: LinearProblem, weights: Any, config: SkinnyConfig, num_rows: int = 1) -> None:
        from atom_kernels.triton.support import dependent_launch

        self._problem, self._config = problem, config
        packing = packing_of(problem.weight_format, problem.in_features)
        if packing.is_one_scale_a_row(problem.in_features):
            packing = PLAIN
        self._weight = weights["weight" if problem.is_plain else "codes"].contiguous()
        self._scale, self._minimum = weights.get("scale"), weights.get("minimum")
        # Rows that are rounded have their scales where the weight has its own.
        self._group = packing.group if packing is not PLAIN else None
        self._bias = weights["bias"]
        self._num_blocks = -(-problem.out_features // config.block_n)
        self._constants = config.launch() | dependent_launch() | packing.constants() | {
            "N": problem.out_features,
            "K": problem.in_features,
            "GATED": problem.gated,
            "PRECISION": precision_of(problem.dtype, is_packed=not problem.is_plain),
        }  # fmt: skip
        self._counter = None
        if config.split_k > 1:
            self._counter = self._zero_counter(num_rows)

    def __call__(
        self,
        x: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
        norm_offset: float = 0.0,
        residual: torch.Tensor | None = None,
        low_rank: LowRankTerm | None = None,
    ) -> torch.Tensor:
        from atom_kernels.linear.triton.skinny import skinny_linear_kernel
        from atom_kernels.norm.triton_backend import rms_norm_by_triton

        problem, config = self._problem, self._config
        if x.dtype is not problem.dtype or x.dim() != 2 or x.shape[1] != problem.in_features:
            planned = f"[T, {problem.in_features}] {problem.dtype}"
            raise TypeError(f"linear was planned for {planned}, got {list(x.shape)} {x.dtype}")
        if x.stride(1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape[0], problem.out_features, dtype=problem.result_dtype, device=x.device)
        if residual is not None:
            residual = residual.contiguous()
        x_scale, multiplied_by_a = None, x
        if norm_weight is not None and (low_rank is not None if config.rounds else config.norm_apart):
            multiplied_by_a = rms_norm_by_triton(x, norm_weight, eps, norm_offset)
        if config.rounds:
            (x, x_scale), norm_weight = rounded_rows(x, norm_weight, eps, norm_offset, group=self._group), None
        elif config.norm_apart:
            x, norm_weight = multiplied_by_a, None
        parts = squares = None
        counter, row_blocks = self._counter, -(-x.shape[0] // config.block_m)
        if counter is not None:
            programs = self._num_blocks * config.split_k * row_blocks
            if counter.numel() < self._num_blocks * row_blocks:
                counter = self._zero_counter(x.shape[0])
            floats = torch.empty(
                programs * config.block_m * ((2 if problem.gated else 1) * config.block_n + 1),
                dtype=torch.float32,
                device=x.device,
            )
            parts, squares = floats[programs * config.block_m :], floats
        if x.shape[0]:
            # Right before: while it runs, the linear's kernel asks for its weights.
            term, constants = (None, None, None), {}
            if low_rank is not None:
                inner = shrunk(multiplied_by_a, low_rank.places_T, low_rank.a_NRI, norm_weight, norm_offset)
                term = (inner, low_rank.places_T, low_rank.b_NrO)
                constants = _constants_of(*low_rank.b_NrO.shape[:2], low_rank.parts)
            launch(
                skinny_linear_kernel, (row_blocks, self._num_blocks, config.split_k),
                x, x_scale, self._weight, self._scale, self._minimum, self._bias, norm_weight, residual, out, parts,
                squares, counter, *term, x.shape[0], x.stride(0), eps, norm_offset, **self._constants, **constants,
            )  # fmt: skip
        return out

    def _zero_counter(self, num_rows: int) -> torch.Tensor:
        row_blocks = -(-num_rows // self._config.block_m)
        return torch.zeros(self._num_blocks * row_blocks, dtype=torch.int32, device=self._weight.device)


@functools.cache
def _constants_of(num_places: int, rank: int, parts: tuple[int, ...]) -> dict[str, Any]:
    """The kernel's constants for what adapters add."""
    ends = tuple(accumulate(parts))
    blocks = {"BLOCK_R": power_of_two(rank), "AT_ONCE": min(power_of_two(rank), _RANKS_AT_ONCE)}
    return {"NUM_PLACES": num_places, "RANK": rank, "PART_ENDS": ends} | blocks
