"""The backend of linears whose rows must have the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.operator import Backend
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch

# The most rows that a tile serves (None: any number), and the tile.
_TILES: tuple[tuple[int | None, dict[str, Any]], ...] = (
    (16, {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}),
    (32, {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}),
    (64, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 5}),
    (128, {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4}),
    (None, {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 4}),
)
# Without tensor cores an element's sum is a loop of its own.
_EXACT_TILE: dict[str, Any] = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
_GROUP_N = 8


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if (reason := problem.why_not_plain()) is not None:
        return reason
    if not platform.batch_invariant:
        return "slower, and for those who ask for batch invariance"
    return why_not_dtype(problem.dtype, FLOATS)


def why_not_cublas(problem: LinearProblem, platform: Any) -> str | None:
    """Torch's own linear on a GPU picks its kernel, and with it the order of a row's sums, by the number of rows."""
    if (reason := problem.why_not_plain()) is not None:
        return reason
    if platform.batch_invariant and platform.device == "cuda":
        return "a row's sums depend on how many rows there are"
    return None


def _bind(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.linear.triton.invariant import invariant_linear_kernel

    weight, bias = weights["weight"].contiguous(), weights["bias"]
    in_features, out_features, dtype = problem.in_features, problem.out_features, problem.dtype
    num_processors = _num_processors(weight.device)
    constants: dict[str, Any] = {
        "N": out_features,
        "K": in_features,
        # The interpreter multiplies float32 matrices only.
        "UPCAST": triton_interpret() and dtype is not torch.float32,
        "GROUP_N": _GROUP_N,
    }

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != in_features:
            raise unplanned("linear", x, in_features, dtype)
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], out_features), dtype=problem.result_dtype)
        num_rows = out.numel() // out_features
        tile = _tile(dtype, num_rows)
        num_tiles = -(-num_rows // tile["BLOCK_M"]) * -(-out_features // tile["BLOCK_N"])
        # Small tiles leave room for two programs on a processor.
        options: dict[str, Any] = {"NUM_PROGRAMS": num_processors * (2 if tile["num_warps"] == 4 else 1)}
        grid = (min(num_tiles, options["NUM_PROGRAMS"]),)
        if num_rows:
            launch(invariant_linear_kernel, grid, x, weight, bias, out, num_rows, **options, **constants, **tile)
        return out

    return run


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _tile(dtype: torch.dtype, num_rows: int) -> dict[str, Any]:
    if dtype is torch.float32:
        return _EXACT_TILE
    return next(tile for most, tile in _TILES if most is None or num_rows <= most)


BATCH_INVARIANT_BACKEND = Backend(
    name="triton",
    implementation="Triton, sums in one order for any rows",
    supports=_supports,
    bind=_bind,
)
