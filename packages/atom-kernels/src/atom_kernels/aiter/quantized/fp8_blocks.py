"""fp8 linears with a scale for 128 x 128 weights and for 128 inputs of a row, as DeepSeek-V3 publishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.float8_codes import SHUFFLE, pack, pack_shuffled
from atom_kernels.aiter.quantized.fp8_rows import why_not_loaded
from atom_kernels.aiter.quantized.linears import RowsProduct, rows_backend, why_not_rounded
from atom_kernels.formats import Float8, RowRounding
from atom_kernels.operator import WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

BLOCK = 128


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := why_not_rounded(problem, platform, Float8(BLOCK, BLOCK), Float8(1, BLOCK))) is not None:
        return reason
    if problem.in_features % BLOCK:
        return f"rounds blocks of {BLOCK} inputs, which {problem.in_features} inputs do not fill"
    return api_of(platform).why_not("per_group_quant_hip")


def _supports_shuffled(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := _supports(problem, platform)) is not None:
        return reason
    if problem.weight_rows % SHUFFLE[0]:
        return f"multiplies shuffled weights of multiples of {SHUFFLE[0]} outputs, not {problem.weight_rows}"
    return api_of(platform).why_not("gemm_a8w8_blockscale_bpreshuffle") or api_of(platform).why_not("shuffle_weight")


def _supports_plain(problem: LinearProblem, platform: Platform) -> str | None:
    reason = _supports(problem, platform) or why_not_loaded(problem)
    return reason or api_of(platform).why_not("gemm_a8w8_blockscale")


def _bind_shuffled(problem: LinearProblem, weights: Any) -> RowsProduct:
    return _bind(problem, weights, "gemm_a8w8_blockscale_bpreshuffle", scales_by_column=True)


def _bind_plain(problem: LinearProblem, weights: Any) -> RowsProduct:
    return _bind(problem, weights, "gemm_a8w8_blockscale", scales_by_column=False)


def _bind(problem: LinearProblem, weights: Any, function: str, *, scales_by_column: bool) -> RowsProduct:
    """Shuffled weights want the scales of x column after column, which their strides do not say."""
    quantize = library().bind(
        "per_group_quant_hip",
        "x",
        quant_dtype=weights["weight"].dtype,
        group_size=BLOCK,
        transpose_scale=scales_by_column,
    )
    multiply = library().bind(
        function, "XQ", "x_scale", WQ=weights["weight"], w_scale=weights["scale"], dtype=problem.dtype
    )

    return RowsProduct(quantize, multiply).plus(weights["bias"])


SHUFFLED = rows_backend(
    "AITER gemm_a8w8_blockscale_bpreshuffle of blocks in fp8",
    _supports_shuffled,
    _bind_shuffled,
    WeightLayout("aiter_fp8_blocks_16x16", pack_shuffled),
    RowRounding(BLOCK, by_column=True),
)
PLAIN = rows_backend(
    "AITER gemm_a8w8_blockscale of blocks in fp8",
    _supports_plain,
    _bind_plain,
    WeightLayout("aiter_fp8_blocks", pack),
    RowRounding(BLOCK),
)
