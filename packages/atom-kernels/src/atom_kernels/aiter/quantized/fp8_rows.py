"""fp8 linears with a scale for each row of the weight and of x: AITER's product of rows.

One scale for a whole weight is held as equal scales of its rows, so that this product serves it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.float8_codes import SHUFFLE, pack, pack_shuffled
from atom_kernels.aiter.quantized.linears import RowsProduct, rows_backend, why_not_rounded
from atom_kernels.formats import Float8, RowRounding
from atom_kernels.operator import WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

# A product of a shuffled weight that nobody tuned: AITER refuses fewer inputs than 192, and other multiples.
_LEAST_INPUTS, _STEP = 192, 64
# Composable Kernel's loads of a plain weight, and its stores.
_LOADED, _STORED = 16, 8


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    reason = why_not_rounded(problem, platform, Float8(), Float8())
    return reason or api_of(platform).why_not("per_token_quant_hip")


def _supports_shuffled(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := _supports(problem, platform)) is not None:
        return reason
    inputs, outputs = problem.in_features, problem.weight_rows
    if inputs < _LEAST_INPUTS or inputs % _STEP or outputs % SHUFFLE[0]:
        return (
            f"multiplies shuffled weights of whole tiles of {SHUFFLE[0]} x {_STEP}, with {_LEAST_INPUTS} inputs at "
            f"least, not {outputs} x {inputs}"
        )
    return api_of(platform).why_not("gemm_a8w8_bpreshuffle") or api_of(platform).why_not("shuffle_weight")


def _supports_plain(problem: LinearProblem, platform: Platform) -> str | None:
    reason = _supports(problem, platform) or why_not_loaded(problem)
    return reason or api_of(platform).why_not("gemm_a8w8")


def why_not_loaded(problem: LinearProblem) -> str | None:
    """Why Composable Kernel cannot load a plain weight of 8 bits, or store the result."""
    inputs, outputs = problem.in_features, problem.weight_rows
    if inputs % _LOADED or outputs % _STORED:
        return f"loads {_LOADED} inputs and stores {_STORED} outputs at once, not {outputs} x {inputs}"
    return None


def _bind_shuffled(problem: LinearProblem, weights: Any) -> RowsProduct:
    quantize = library().bind("per_token_quant_hip", "x", quant_dtype=weights["weight"].dtype)
    multiply = library().bind(
        "gemm_a8w8_bpreshuffle",
        "XQ",
        "x_scale",
        WQ=weights["weight"],
        w_scale=weights["scale"],
        bias=None,
        dtype=problem.dtype,
    )

    return RowsProduct(quantize, multiply).plus(weights["bias"])


def _bind_plain(problem: LinearProblem, weights: Any) -> RowsProduct:
    quantize = library().bind("per_token_quant_hip", "x", quant_dtype=weights["weight"].dtype)
    bias = weights["bias"]
    multiply = library().bind(
        "gemm_a8w8",
        "XQ",
        "x_scale",
        WQ=weights["weight"],
        w_scale=weights["scale"],
        bias=None if bias is None else bias.contiguous(),
        dtype=problem.dtype,
    )
    return RowsProduct(quantize, multiply)


SHUFFLED = rows_backend(
    "AITER gemm_a8w8_bpreshuffle of rows in fp8",
    _supports_shuffled,
    _bind_shuffled,
    WeightLayout("aiter_fp8_rows_16x16", pack_shuffled),
    RowRounding(),
)
PLAIN = rows_backend(
    "AITER gemm_a8w8 of rows in fp8",
    _supports_plain,
    _bind_plain,
    WeightLayout("aiter_fp8_rows", pack),
    RowRounding(),
)
