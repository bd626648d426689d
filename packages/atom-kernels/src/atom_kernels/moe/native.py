"""Routing and experts in C: few rows cost little more than reading the chosen experts' weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import Any

import torch

from atom_kernels.activation.names import Activation
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.moe.contract import ExpertsProblem, RoutingProblem, experts_inputs, routing_tensors
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SIGNATURES = {
    "moe_route_f32": "ppppllllllllf",
    "moe_route_bf16": "ppppllllllllf",
    "moe_experts_f32": "ppppppppllllllffp->l",
    "moe_experts_bf16": "ppppppppllllllffp->l",
    "moe_workspace_bytes": "llllll->l",
    "has_linear_bf16": "->l",
}
# Activations by the number that the C function knows them by.
_ACTIVATIONS = {Activation.SILU: 0, Activation.SWIGLU_OAI: 1}
# The C function keeps the scores of so many experts on the stack.
_MAX_EXPERTS = 1024
# As for linears: bfloat16 rows this long leave the caches once an expert has many of them.
_LONG = 2048
_FEW_ROWS = 32
# Rows of each expert in one pass, on average: weights are read few times, and the buffers between products stay small.
_PASSING_ROWS, _PASSING_TOKENS = 64, 512


def _route_supports(problem: RoutingProblem, platform: Any) -> str | None:
    if problem.num_experts > _MAX_EXPERTS:
        return f"written for up to {_MAX_EXPERTS} experts"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("moe")


def _route_bind(problem: RoutingProblem, weights: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    function = getattr(load_native("moe", _SIGNATURES), f"moe_route_{_SUFFIXES[problem.dtype]}")
    bias = weights.get("correction_bias")
    bias = None if bias is None else bias.contiguous()
    bias_pointer = c_void_p(None if bias is None else bias.data_ptr())
    numbers = (
        c_int64(problem.num_experts),
        c_int64(problem.top_k),
        c_int64(problem.scoring == "sigmoid"),
        c_int64(problem.renormalize),
        c_int64(problem.num_groups),
        c_int64(problem.top_groups),
        c_int64(2 if problem.group_score == "top2" else 1),
    )
    scaling = c_float(problem.scaling_factor)

    def run(logits: torch.Tensor, _keep_alive: Any = bias) -> tuple[torch.Tensor, torch.Tensor]:
        logits, out, ids = routing_tensors(problem, logits)
        function(logits.data_ptr(), bias_pointer, out.data_ptr(), ids.data_ptr(), logits.shape[0], *numbers, scaling)
        return out, ids

    return run


ROUTE_BACKEND = Backend(
    name="native", implementation="C scores and selection", supports=_route_supports, bind=_route_bind
)


def _experts_supports(problem: ExpertsProblem, platform: Any) -> str | None:
    if (reason := problem.why_not_plain() or why_not_activation(problem)) is not None:
        return reason
    reason = why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("moe")
    if reason is None and problem.dtype == torch.bfloat16 and not load_native("moe", _SIGNATURES).has_linear_bf16():
        return "written for CPUs with avx512_bf16"
    return reason


def _experts_max_rows(problem: ExpertsProblem, platform: Any) -> int | None:
    if problem.dtype == torch.float32:
        return None
    rows_of_all = _FEW_ROWS * max(1, problem.num_routed // problem.top_k)
    if "amx_bf16" in platform.cpu_features:
        return rows_of_all // 4
    short = max(problem.hidden_size, problem.intermediate_size) <= _LONG
    return None if short else rows_of_all


def _experts_bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    library = load_native("moe", _SIGNATURES)
    function = getattr(library, f"moe_experts_{_SUFFIXES[problem.dtype]}")
    names = ("gate_up", "down", "gate_up_bias", "down_bias")
    held = [None if weights[name] is None else weights[name].contiguous() for name in names]
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in held]
    return bind_experts(problem, function, library.moe_workspace_bytes, pointers, held)


def why_not_activation(problem: ExpertsProblem) -> str | None:
    """Why the C functions do not compute the activation; None where they do."""
    known = " and ".join(_ACTIVATIONS)
    return None if problem.activation in _ACTIVATIONS else f"computes {known}, not {problem.activation}"


def bind_experts(
    problem: ExpertsProblem,
    function: Callable[..., int],
    workspace_bytes: Callable[..., int],
    pointers: Sequence[int | None],
    keep_alive: Any,
    *,
    dtype: torch.dtype | None = None,
) -> Callable[..., torch.Tensor]:
    """The operator by a C function ``moe_experts`` of ``moe_experts.h``.

    Args:
        pointers: addresses of the matrices of gate_up and down, and of their biases.
        keep_alive: what the pointers lead to.
        dtype: the dtype of rows in the C function; None is the problem's.
    """
    dtype = dtype or problem.dtype
    # Arguments that never change are converted for C once.
    matrices = tuple(c_void_p(pointer) for pointer in pointers)
    shape = (problem.num_experts, problem.top_k, problem.hidden_size, problem.intermediate_size)
    sizes = tuple(c_int64(size) for size in shape)
    item_size = c_int64(dtype.itemsize)
    activation, alpha, limit = c_int64(_ACTIVATIONS[problem.activation]), c_float(problem.alpha), c_float(problem.limit)
    passing = max(_PASSING_TOKENS, _PASSING_ROWS * problem.num_routed // problem.top_k)
    row_bytes = problem.hidden_size * dtype.itemsize
    top_k, empty_like, uint8 = problem.top_k, torch.empty_like, torch.uint8

    def run(
        x: torch.Tensor,
        weights_TK: torch.Tensor,
        ids_TK: torch.Tensor,
        base: torch.Tensor | None = None,
        _keep_alive: Any = keep_alive,
    ) -> torch.Tensor:
        x, weights_TK, ids_TK, base = experts_inputs(problem, x, weights_TK, ids_TK, base)
        x = x.to(dtype)
        num_tokens, out = x.shape[0], empty_like(x)
        workspace = x.new_empty(workspace_bytes(min(num_tokens, passing), *sizes, item_size), dtype=uint8)
        for start in range(0, num_tokens, passing):
            row, pair = start * row_bytes, start * top_k * 4
            if not function(
                x.data_ptr() + row, weights_TK.data_ptr() + pair, ids_TK.data_ptr() + pair, *matrices,
                out.data_ptr() + row, min(num_tokens - start, passing), *sizes, activation, alpha, limit,
                workspace.data_ptr(),
            ):  # fmt: skip
                raise MemoryError("no memory for a panel of the experts' weights")
        return (out if base is None else out.add_(base)).to(problem.dtype)

    return run


EXPERTS_BACKEND = Backend(
    name="native",
    implementation="C products of sorted rows, rows independent",
    supports=_experts_supports,
    bind=_experts_bind,
    max_rows=_experts_max_rows,
)
