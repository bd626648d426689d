"""The chosen experts through torch's grouped matrix product between Triton kernels: for many rows of each expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from atom_kernels.activation.triton_backend import why_not_in_triton
from atom_kernels.moe.contract import ExpertsProblem, experts_inputs
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

_SORT_BLOCK, _ACTIVATION_BLOCK, _COMBINE_BLOCK = 4096, 1024, 1024


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
        self._activate: Any = rows.activation_kernel
        self._combine: Any = rows.combine_kernel
        self._launch, self._problem = dependent_launch(), problem
        self._gate_up, self._down = gate_up.contiguous().transpose(1, 2), down.contiguous().transpose(1, 2)
        self._gate_up_bias, self._down_bias = weights["gate_up_bias"], weights["down_bias"]
        self._activation_block = min(_ACTIVATION_BLOCK, power_of_two(problem.intermediate_size))
        self._combine_block = min(_COMBINE_BLOCK, power_of_two(problem.hidden_size))

    def __call__(
        self, x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        problem = self._problem
        x_TD, weights_TK, ids_TK, base_TD = experts_inputs(problem, x_TD, weights_TK, ids_TK, base_TD)
        out_TD, count = torch.empty_like(x_TD), ids_TK.numel()
        if count == 0:
            return out_TD
        # Places past the last expert's rows stay 0: these rows are neither computed nor read.
        order, places = ids_TK.new_zeros(count), ids_TK.new_empty(count)
        starts = ids_TK.new_empty(problem.num_experts + 1)
        launch(
            self._sort, (problem.num_experts,),
            ids_TK, order, places, starts, count,
            NUM_EXPERTS=problem.num_experts, BLOCK=_SORT_BLOCK, num_warps=8, **self._launch,
        )  # fmt: skip
        sorted_x = x_TD.index_select(0, order // problem.top_k)
        sums = torch.nn.functional.grouped_mm(sorted_x, self._gate_up, offs=starts[1:])
        size, hidden_size = problem.intermediate_size, problem.hidden_size
        hidden = x_TD.new_empty(count, size)
        launch(
            self._activate, (count, -(-size // self._activation_block)),
            sums, self._gate_up_bias, hidden, order, ids_TK, starts[-1:], problem.alpha, problem.limit,
            WIDTH=size, ACTIVATION=str(problem.activation), BLOCK=self._activation_block, **self._launch,
        )  # fmt: skip
        partial = torch.nn.functional.grouped_mm(hidden, self._down, offs=starts[1:])
        launch(
            self._combine, (x_TD.shape[0], -(-hidden_size // self._combine_block)),
            partial, self._down_bias, places, weights_TK, ids_TK, base_TD, out_TD,
            NUM_EXPERTS=problem.num_experts, TOP_K=problem.top_k, WIDTH=hidden_size, BLOCK=self._combine_block, PARTS=1,
            **self._launch,
        )  # fmt: skip
        return out_TD


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
