"""The chosen experts through torch's grouped matrix product between Triton kernels: for many rows of each expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from atom_kernels.activation.triton_backend import why_not_in_triton
from atom_kernels.moe.contract import ExpertsProblem, experts_inputs
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# About so many programs sort, those of all experts together; each of them reads all pairs.
_SORT_BLOCK, _SORT_WARPS, _SORT_PROGRAMS = 4096, 8, 256
# A program has at most so many columns; one that activates takes several short rows, which are so many values.
_COLUMNS, _ACTIVATED = 1024, 2048


class GroupedExperts:
    """`experts` for given weights."""

    def __init__(self, problem: ExpertsProblem, weights: Mapping[str, torch.Tensor | None]) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.moe.triton import pairs, rows
        from atom_kernels.powers_of_two import power_of_two
        from atom_kernels.triton.support import dependent_launch

        gate_up, down = weights["gate_up"], weights["down"]
        if gate_up is None or down is None:
            raise ValueError("experts need the weights gate_up and down")
        self._sort: Any = pairs.sort_pairs_kernel
        self._spread: Any = rows.spread_kernel
        self._activate: Any = rows.activation_kernel
        self._combine: Any = rows.combine_kernel
        self._launch, self._problem = dependent_launch(), problem
        self._gate_up, self._down = gate_up.contiguous().transpose(1, 2), down.contiguous().transpose(1, 2)
        self._gate_up_bias, self._down_bias = weights["gate_up_bias"], weights["down_bias"]
        self._activation_block = min(_COLUMNS, power_of_two(problem.intermediate_size))
        block = min(_COLUMNS, power_of_two(problem.hidden_size))
        self._row_blocks = -(-problem.hidden_size // block)
        self._of_rows = {"NUM_EXPERTS": problem.num_experts, "TOP_K": problem.top_k, "WIDTH": problem.hidden_size}
        self._of_rows |= {"BLOCK": block, **self._launch}

    def __call__(
        self, x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.in_runs(x_TD, weights_TK, ids_TK, base_TD)(slice(None))

    def in_runs(
        self, x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> Callable[[slice], torch.Tensor]:
        """The pairs' results, and what adds up those of a run of tokens; see `BoundPlan.in_runs`."""
        problem = self._problem
        x_TD, weights_TK, ids_TK, base_TD = experts_inputs(problem, x_TD, weights_TK, ids_TK, base_TD)
        if ids_TK.numel() == 0:
            return torch.empty_like(x_TD).__getitem__
        order, places, starts = self._sorted(ids_TK)
        # Rows of pairs without an expert are neither written, nor computed, nor read.
        sorted_x = x_TD.new_empty(ids_TK.numel(), problem.hidden_size)
        launch(self._spread, (len(x_TD), self._row_blocks), x_TD, places, ids_TK, sorted_x, **self._of_rows)
        sums = torch.nn.functional.grouped_mm(sorted_x, self._gate_up, offs=starts[1:])
        hidden = self._activated(sums, ids_TK, order, starts[-1:])
        partial = torch.nn.functional.grouped_mm(hidden, self._down, offs=starts[1:])

        def combined(run: slice) -> torch.Tensor:
            out_TD, base = torch.empty_like(x_TD[run]), None if base_TD is None else base_TD[run]
            pairs = (places.view_as(ids_TK)[run], weights_TK[run], ids_TK[run])
            launch(
                self._combine, (len(out_TD), self._row_blocks),
                partial, self._down_bias, *pairs, base, out_TD, PARTS=1, **self._of_rows,
            )  # fmt: skip
            return out_TD

        return combined

    def _sorted(self, ids_TK: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """(the pairs by expert, for biases alone, each pair's place among them, where each expert's begin)."""
        num_experts, count = self._problem.num_experts, ids_TK.numel()
        order = None if self._gate_up_bias is None else ids_TK.new_empty(count)
        places, starts = ids_TK.new_empty(count), ids_TK.new_empty(num_experts + 1)
        num_parts = max(_SORT_PROGRAMS // num_experts, 1)
        part = -(-count // (num_parts * _SORT_BLOCK)) * _SORT_BLOCK
        launch(
            self._sort, (num_experts, -(-count // part)), ids_TK, order, places, starts, count, part,
            NUM_EXPERTS=num_experts, BLOCK=_SORT_BLOCK, num_warps=_SORT_WARPS, **self._launch,
        )  # fmt: skip
        return order, places, starts

    def _activated(
        self, sums: torch.Tensor, ids_TK: torch.Tensor, order: torch.Tensor | None, num_sorted: torch.Tensor
    ) -> torch.Tensor:
        problem, block = self._problem, self._activation_block
        rows = max(_ACTIVATED // block, 1)
        hidden = sums.new_empty(sums.shape[0], problem.intermediate_size)
        launch(
            self._activate, (-(-sums.shape[0] // rows), -(-problem.intermediate_size // block)),
            sums, self._gate_up_bias, hidden, order, ids_TK, num_sorted, problem.alpha, problem.limit,
            WIDTH=problem.intermediate_size, ACTIVATION=str(problem.activation), ROWS=rows, BLOCK=block, **self._launch,
        )  # fmt: skip
        return hidden


def why_not_grouped(problem: ExpertsProblem, platform: Any) -> str | None:
    """None if the grouped product can run here, else the reason."""
    if (reason := problem.why_not_plain() or why_not_in_triton(problem.activation)) is not None:
        return reason
    if problem.batch_invariant:
        return "a row's sums depend on how many rows there are"
    if getattr(torch.nn.functional, "grouped_mm", None) is None:
        return f"torch {torch.__version__} has no grouped_mm"
    if platform.vendor != "nvidia" or int(platform.arch.removeprefix("sm_")) < 90:
        return f"torch's grouped_mm is fast on NVIDIA GPUs from sm_90 on, this is {platform.arch}"
    if problem.dtype is not torch.bfloat16:
        return f"grouped_mm takes bfloat16, not {problem.dtype}"
    if problem.hidden_size % 8 or problem.intermediate_size % 8:
        return "grouped_mm takes sizes that are multiples of 8"
    return None


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    return GroupedExperts(problem, weights)


GROUPED_BACKEND = Backend(
    name="triton", implementation="torch grouped_mm of sorted rows", supports=why_not_grouped, bind=_bind
)
