"""Experts on AITER: `fused_moe` with weights in bfloat16 or float16, which Composable Kernel's two products compute.

That path of `fused_moe` computes silu (and gelu) only: it ignores biases and padded sizes, and silently computes
AITER's swiglu as a gelu. GPT-OSS in bfloat16 therefore goes on to the next backend: AITER has its swiglu, biases and
interleaved gates for MXFP4 weights only. Shared experts are an MLP of their own, whose result is the base that is added
here: AITER takes them into the call for MXFP4 weights only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation.names import Activation
from atom_kernels.aiter.library import library
from atom_kernels.moe.contract import ExpertsProblem, experts_inputs
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import detect_platform

_DTYPES = (torch.bfloat16, torch.float16)
# Tiles of the products; nothing is masked in them.
_TILE = 128
_SHUFFLE = (16, 16)


def _supports(problem: ExpertsProblem, platform: Any) -> str | None:
    if (reason := problem.why_not_plain()) is not None:
        return reason
    if problem.dtype not in _DTYPES:
        return f"fused_moe is written for bfloat16 and float16, not {problem.dtype}"
    if problem.activation != Activation.SILU:
        return f"fused_moe is called for silu, not {problem.activation}; its swiglu takes MXFP4 weights only"
    if problem.bias:
        return "fused_moe adds biases of experts to MXFP4 weights only"
    if problem.batch_invariant:
        return "fused_moe chooses its kernels by the number of tokens"
    if problem.hidden_size % _TILE:
        return f"fused_moe takes hidden sizes that are multiples of {_TILE}, not {problem.hidden_size}"
    return platform.aiter.why_not("fused_moe") or platform.aiter.why_not("shuffle_weight")


def padded_size(problem: ExpertsProblem) -> int:
    """The intermediate size in whole tiles: rows and columns of zeros change nothing."""
    return -(-problem.intermediate_size // _TILE) * _TILE


def _pack(problem: ExpertsProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    shuffle = library().bind("shuffle_weight", "x", layout=_SHUFFLE)
    gate_up, down, size = weights["gate_up"], weights["down"], problem.intermediate_size
    missing = padded_size(problem) - size
    if missing:
        gate, up = (torch.nn.functional.pad(half, (0, 0, 0, missing)) for half in gate_up.split(size, dim=1))
        gate_up, down = torch.cat((gate, up), dim=1), torch.nn.functional.pad(down, (0, missing))
    return {"gate_up": shuffle(gate_up), "down": shuffle(down)}


def _packed_bytes(problem: ExpertsProblem, source_bytes: int) -> int:
    return source_bytes // problem.intermediate_size * padded_size(problem)


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    return bind_fused_moe(problem, weights, "No")


def bind_fused_moe(
    problem: ExpertsProblem, weights: Any, quant_type: str, *, aligned_to: int = 1, **scales: torch.Tensor
) -> Callable[..., torch.Tensor]:
    """`fused_moe` with its weights, as a function of rows and the experts chosen for them.

    Args:
        quant_type: AITER's name for the weights' format.
        aligned_to: rows that begin at no multiple of so many bytes are copied first.
        scales: scales of the weights, by the names that AITER has for them.
    """
    aiter = library()
    compute = aiter.bind(
        "fused_moe",
        "hidden_states",
        "topk_weight",
        "topk_ids",
        w1=weights["gate_up"],
        w2=weights["down"],
        **scales,
        expert_mask=_mask(problem),
        activation=aiter.enum("ActivationType", "Silu"),
        quant_type=aiter.enum("QuantType", quant_type),
    )

    def run(
        x_TD: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor, base_TD: torch.Tensor | None = None
    ) -> torch.Tensor:
        x_TD, weights_TK, ids_TK, base_TD = experts_inputs(problem, x_TD, weights_TK, ids_TK, base_TD)
        if x_TD.shape[0] == 0:
            return torch.empty_like(x_TD)
        if x_TD.data_ptr() % aligned_to:
            x_TD = x_TD.clone()
        out_TD = compute(x_TD, weights_TK, ids_TK)
        return out_TD if base_TD is None else out_TD.add_(base_TD)

    return run


def _mask(problem: ExpertsProblem) -> torch.Tensor | None:
    """1 for every id that has an expert here, and 0 for the one that absent experts share."""
    if not problem.num_absent:
        return None
    return torch.tensor([1] * problem.num_experts + [0], dtype=torch.int32, device=detect_platform().device)


EXPERTS_BACKEND = Backend(
    name="aiter",
    implementation="AITER fused_moe",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("aiter_shuffled_experts", _pack, _packed_bytes),
)
