"""Routing through Triton, as a backend of its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.moe.contract import RoutingProblem, routing_tensors
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# Scores of a token lie in the registers of one program.
_MAX_EXPERTS = 1024


def _supports(problem: RoutingProblem, platform: Any) -> str | None:
    if problem.num_experts > _MAX_EXPERTS:
        return f"holds the scores of up to {_MAX_EXPERTS} experts in registers, not {problem.num_experts}"
    return why_not_dtype(problem.dtype, FLOATS)


def _bind(problem: RoutingProblem, weights: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    from atom_kernels.moe.triton.route import route_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    bias = weights.get("correction_bias")
    bias = None if bias is None else bias.contiguous()
    count, top_k = problem.num_experts, problem.top_k
    # Without a choice of groups all experts are one.
    num_groups = problem.num_groups if problem.top_groups < problem.num_groups else 1
    size = count // num_groups
    constants = {
        "TOP_K": top_k,
        "TOP_K_BLOCK": power_of_two(top_k),
        "SIGMOID": problem.scoring == "sigmoid",
        "RENORMALIZE": problem.renormalize,
        "HAS_BIAS": bias is not None,
        "BY_LOGITS": bias is None and problem.scoring == "softmax" and problem.group_score == "max",
        "NUM_GROUPS": num_groups,
        "GROUPS_BLOCK": power_of_two(num_groups),
        "TOP_GROUPS": min(problem.top_groups, num_groups),
        "GROUP_SIZE": size,
        "SIZE_BLOCK": power_of_two(size),
        "GROUP_BY_TWO": problem.group_score == "top2",
        "num_warps": 1 if count <= 256 else 4,
        **dependent_launch(),
    }

    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, out, ids = routing_tensors(problem, logits)
        if logits.shape[0]:
            launch(route_kernel, (logits.shape[0],), logits, bias, out, ids, problem.scaling_factor, **constants)
        return out, ids

    return run


ROUTE_BACKEND = Backend(
    name="triton", implementation="Triton scores and selection, a program a token", supports=_supports, bind=_bind
)
