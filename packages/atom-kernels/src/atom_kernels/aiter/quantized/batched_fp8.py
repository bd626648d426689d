"""Products of heads in float8 on AITER: one scale for all weights, and rows that the kernel rounds as it reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.batched_gemm import Product, of_some_rows
from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.head_product.contract import HeadProductProblem

_FUNCTION = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
_GROUP = 128


def _supports(problem: HeadProductProblem, platform: Platform) -> str | None:
    if problem.rounded_to != platform.float8:
        return f"rounds heads to {platform.float8} on {platform.arch}, not to {problem.rounded_to}"
    if problem.dtype != torch.bfloat16:
        # In float16 the least size of a group's largest number is 0, by which groups of zeros are divided.
        return f"takes and gives bfloat16, not {problem.dtype}"
    if platform.batch_invariant:
        return "its tiles, and so a row's sums, are chosen by the number of rows"
    return api_of(platform).why_not(_FUNCTION)


def _pack(problem: HeadProductProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    from atom_kernels.head_product.contract import float8_of_one_scale

    codes, scale = float8_of_one_scale(weights["weight"], getattr(torch, str(problem.rounded_to)))
    return {"weight": codes.contiguous(), "scale": scale}


def _num_bytes(problem: HeadProductProblem, source_bytes: int) -> int:
    return source_bytes // problem.dtype.itemsize + torch.float32.itemsize


def _bind(problem: HeadProductProblem, weights: Any) -> Product:
    multiply = library().bind(
        _FUNCTION, "X", WQ=weights["weight"], w_scale=weights["scale"], group_size=_GROUP, dtype=problem.dtype,
        transpose_bm=True, transpose_bm_in=True,
    )  # fmt: skip
    return of_some_rows(problem, multiply)


BACKEND = Backend(
    name="aiter",
    implementation="AITER batched product in fp8, rows rounded, each 128 inputs",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("fp8_by_head", _pack, _num_bytes),
)
