"""Routing on AITER: softmax of all experts, best groups by their best expert, and DeepSeek-V3's biased groups.

AITER has one function for each. The limits are those of its kernels (csrc/kernels/topk_softmax_kernels.cu and
topk_softmax_kernels_group.cu), which compute some shapes beyond them wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.aiter.library import library
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.moe.contract import RoutingProblem, routing_tensors
from atom_kernels.operator import Backend
from atom_kernels.powers_of_two import is_power_of_two

Kernel = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# Each chosen expert is kept by one lane of a wavefront.
_MOST_CHOSEN = 64
_GROUPS = (1, 2, 4, 8)
# Above 212 rows a compute unit `biased_grouped_topk` takes another kernel; the smallest partition has 32 units.
_ROWS_OF_ONE_KERNEL = 212 * 32
_EXPERTS_OF_A_THREAD = 32


def _softmax_supports(problem: RoutingProblem, platform: Any) -> str | None:
    if problem.scoring != "softmax" or problem.correction_bias:
        return "topk_softmax scores by softmax, with no bias"
    if problem.top_groups < problem.num_groups:
        return "topk_softmax knows no groups"
    return _why_not(problem, platform, "topk_softmax")


def _grouped_supports(problem: RoutingProblem, platform: Any) -> str | None:
    if problem.correction_bias:
        return "grouped_topk adds no bias"
    if _limits_groups(problem) and problem.group_score != "max":
        return "grouped_topk ranks a group by its best expert, not by its two best"
    return _why_not(problem, platform, "grouped_topk") or _why_not_these_groups(problem)


def _biased_supports(problem: RoutingProblem, platform: Any) -> str | None:
    if problem.scoring != "sigmoid" or not problem.correction_bias:
        return "biased_grouped_topk adds a bias to sigmoids"
    if not problem.renormalize:
        return "biased_grouped_topk renormalizes: without, it loses the factor, or refuses many rows"
    if _limits_groups(problem):
        if problem.group_score != "top2":
            return "biased_grouped_topk ranks a group by its two best experts, not by its best"
        lanes_see = _vector(problem.num_experts)
        if problem.num_groups < 8 and problem.num_experts // problem.num_groups > lanes_see:
            return f"biased_grouped_topk ranks {problem.num_groups} groups by their first {lanes_see} experts only"
    return _why_not(problem, platform, "biased_grouped_topk") or _why_not_these_groups(problem)


def _why_not(problem: RoutingProblem, platform: Any, function: str) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS) or platform.aiter.why_not(function)


def _why_not_these_groups(problem: RoutingProblem) -> str | None:
    groups, vector = _groups(problem)[0], _vector(problem.num_experts)
    if groups not in _GROUPS:
        return f"takes 1, 2, 4 or 8 groups, not {groups}"
    if problem.num_experts // groups % vector:
        return f"reads {vector} experts at a time, which {problem.num_experts // groups} of a group are no multiple of"
    if problem.top_k > _MOST_CHOSEN:
        return f"chooses up to {_MOST_CHOSEN} experts, not {problem.top_k}"
    return None


def _limits_groups(problem: RoutingProblem) -> bool:
    return problem.top_groups < problem.num_groups


def _groups(problem: RoutingProblem) -> tuple[int, int]:
    """The number of groups, and how many of them are chosen; all experts are one group where no groups are chosen."""
    return (problem.num_groups, problem.top_groups) if _limits_groups(problem) else (1, 1)


def _vector(num_experts: int) -> int:
    """How many neighbouring experts a lane reads at once."""
    return {0: 4, 2: 2}.get(num_experts % 4, 1)


def _biased_rows(problem: RoutingProblem, platform: Any) -> int | None:
    """Rows up to which results are right: the kernel for very many rows takes powers of two, and small groups."""
    num_experts, group_size = problem.num_experts, problem.num_experts // _groups(problem)[0]
    if is_power_of_two(num_experts) and group_size <= _EXPERTS_OF_A_THREAD:
        return None
    # In sources from git, large groups stay with the first kernel.
    if group_size > _EXPERTS_OF_A_THREAD and platform.aiter.release == "git":
        return None
    return _ROWS_OF_ONE_KERNEL


def _softmax_bind(problem: RoutingProblem, weights: Any) -> Kernel:
    choose = library().bind(
        "topk_softmax",
        "topk_weights",
        "topk_indices",
        "token_expert_indices",
        "gating_output",
        need_renorm=problem.renormalize,
    )
    factor = problem.scaling_factor

    def fill(logits_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor) -> None:
        choose(weights_TK, ids_TK, torch.empty_like(ids_TK), logits_TE)
        if factor != 1.0:
            weights_TK.mul_(factor)

    return _kernel(problem, fill)


def _grouped_bind(problem: RoutingProblem, weights: Any) -> Kernel:
    groups, top_groups = _groups(problem)
    choose = library().bind(
        "grouped_topk",
        "gating_output",
        "topk_weights",
        "topk_ids",
        num_expert_group=groups,
        topk_group=top_groups,
        need_renorm=problem.renormalize,
        is_softmax=problem.scoring == "softmax",
        routed_scaling_factor=problem.scaling_factor,
    )
    return _kernel(problem, choose)


def _biased_bind(problem: RoutingProblem, weights: Any) -> Kernel:
    groups, top_groups = _groups(problem)
    choose = library().bind(
        "biased_grouped_topk",
        "gating_output",
        "correction_bias",
        "topk_weights",
        "topk_ids",
        num_expert_group=groups,
        topk_group=top_groups,
        need_renorm=problem.renormalize,
        routed_scaling_factor=problem.scaling_factor,
    )
    bias_E = weights["correction_bias"].contiguous()

    def fill(logits_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor) -> None:
        # The kernel reads the bias in the logits' dtype; rounded to bfloat16 it would be of no use.
        choose(logits_TE.float(), bias_E, weights_TK, ids_TK)

    return _kernel(problem, fill)


def _kernel(problem: RoutingProblem, fill: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> Kernel:
    def run(logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits_TE, weights_TK, ids_TK = routing_tensors(problem, logits_TE)
        if logits_TE.shape[0]:
            fill(logits_TE, weights_TK, ids_TK)
        return weights_TK, ids_TK

    return run


SOFTMAX_BACKEND = Backend(
    name="aiter", implementation="AITER topk_softmax", supports=_softmax_supports, bind=_softmax_bind
)
GROUPED_BACKEND = Backend(
    name="aiter", implementation="AITER grouped_topk", supports=_grouped_supports, bind=_grouped_bind
)
BIASED_BACKEND = Backend(
    name="aiter",
    implementation="AITER biased_grouped_topk",
    supports=_biased_supports,
    bind=_biased_bind,
    max_rows=_biased_rows,
)
