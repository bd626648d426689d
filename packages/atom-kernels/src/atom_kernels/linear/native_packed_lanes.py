"""Linear in C over packed codes where a CPU multiplies bfloat16 in vectors: an output in each lane of a register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import why_not_dtype
from atom_kernels.formats import Codes, unpack_nibbles
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.native_quantized import (
    MOST_ROWS_WITH_TERM,
    by_group,
    group_size,
    over_rows,
    pointers_of,
    scales,
    why_not_groups,
)
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, WeightLayout

_FUNCTIONS = {
    "linear_packed_lanes": "lpppplpppllll->l",
    "adapted_linear_packed_lanes": "lpppplpppllllpp->l",
}
# Where a CPU has no instructions for it, this is the only function.
_HAS_BF16 = {"has_linear_bf16": "->l"}
_OUTPUTS, _INPUTS = 16, 8  # of a step


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if (reason := why_not_groups(problem)) is not None:
        return reason
    if (reason := why_not_dtype(problem.dtype, (torch.bfloat16,))) is not None:
        return reason
    if platform.fast_bf16 and "amx_bf16" in platform.cpu_features:
        return "multiplies in vectors, which is slower than bfloat16 is here"
    if (reason := native_unavailable("linear_packed_lanes")) is not None:
        return reason
    has_bf16 = load_native("linear_packed_lanes", _HAS_BF16).has_linear_bf16()
    return None if has_bf16 else "written for CPUs with avx512_bf16"


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    bias, minimum = weights["bias"], _minimum(problem, weights)
    of_groups = {"scale": scales(problem, weights), "minimum": minimum}
    return {
        "codes": _by_steps(problem, weights["weight"]),
        "bias": None if bias is None else bias.contiguous(),
        **{name: None if one is None else _by_blocks(problem, one) for name, one in of_groups.items()},
    }


def _by_steps(problem: LinearProblem, stored: torch.Tensor) -> torch.Tensor:
    """Codes as `packed_lanes.h` reads them."""
    codes = problem.weight_format.codes
    numbers = unpack_nibbles(stored) if codes.is_packed else stored.contiguous().view(torch.uint8)
    if codes is Codes.INT8:
        numbers = torch.where(numbers > 127, numbers ^ 127, numbers)  # the sign, and what is left of a half
    steps = _of_blocks(numbers).unflatten(2, (-1, _INPUTS)).transpose(1, 2)  # [N / 16, K / 8, 16, 8]
    if not codes.is_packed:
        return steps.unflatten(3, (2, 2, 2)).unflatten(2, (4, 4)).permute(0, 1, 4, 2, 5, 3, 6).contiguous()
    pairs = steps.unflatten(3, (2, 2, 2))  # of pairs, that lie in a byte, and of a pair
    low, high = pairs.unbind(4)
    return (low | high << 4).transpose(3, 4).contiguous()


def _minimum(problem: LinearProblem, weights: Any) -> torch.Tensor | None:
    """What is added to each weight of a tile: zero points are told so, too."""
    zero = weights.get("zero_point")
    return weights.get("minimum") if zero is None else -zero.float() * scales(problem, weights)


def _is_narrow(problem: LinearProblem) -> bool:
    """Whether scales and minima stay in float16, where they are numbers of it."""
    parts = problem.weight_format.parts
    return parts["scale"].dtype is torch.float16 and "zero_point" not in parts


def _by_blocks(problem: LinearProblem, of_groups: torch.Tensor) -> torch.Tensor:
    """``[N / 16, groups, 16]``."""
    dtype = torch.float16 if _is_narrow(problem) else torch.float32
    return _of_blocks(by_group(problem, of_groups)).transpose(1, 2).to(dtype).contiguous()


def _of_blocks(of_outputs: torch.Tensor) -> torch.Tensor:
    """``[N, ...]`` as ``[N / 16, 16, ...]``, with zeros for the outputs that fill up the last block."""
    missing = -len(of_outputs) % _OUTPUTS
    if missing:
        of_outputs = torch.cat((of_outputs, of_outputs.new_zeros(missing, *of_outputs.shape[1:])))
    return of_outputs.unflatten(0, (-1, _OUTPUTS))


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    rows, columns, parts = problem.weight_rows, problem.in_features, problem.weight_format.parts
    of_a_group = (2 if _is_narrow(problem) else 4) * (1 + ("zero_point" in parts or "minimum" in parts))
    codes = columns // 2 if problem.weight_format.codes.is_packed else columns
    padded = rows + -rows % _OUTPUTS
    return padded * (codes + columns // group_size(problem) * of_a_group) + rows * 2 * problem.bias


def _bind(problem: LinearProblem, packed: Any) -> Callable[..., torch.Tensor]:
    library = load_native("linear_packed_lanes", _FUNCTIONS)
    functions = (library.linear_packed_lanes, library.adapted_linear_packed_lanes)
    codes, scale, minimum, bias = pointers_of(packed, ("codes", "scale", "minimum", "bias"))
    weights = (codes, scale, minimum, int(_is_narrow(problem)), bias)
    return over_rows(problem, packed, functions, weights, torch.bfloat16)


PACKED_LANES_BACKEND = Backend(
    name="native",
    implementation="C, codes looked up in lanes of outputs, rows independent",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("codes by lanes", _pack, _num_bytes),
    most_rows_with_term=MOST_ROWS_WITH_TERM,
)
