"""Linear in C over packed codes: decodes a panel of rows into the caches, and multiplies it there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.formats import Codes, unpack_nibbles
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, WeightLayout

_FUNCTIONS = {"linear_quantized_f32": "lppppppppllll->l", "adapted_linear_quantized_f32": "lppppppppllllpp->l"}
# A kernel reads the matrices of an adapter for each of its rows; products by adapter read them once.
MOST_ROWS_WITH_TERM = 64
# As the source numbers them.
KINDS = {Codes.INT8: 0, Codes.INT4: 1, Codes.E2M1: 2, Codes.E4M3: 3}
# Columns that lie together: codes of four bits have their first half in the low halves of 16 bytes.
_BLOCK = 32
_HALF = 16


def why_not_groups(problem: LinearProblem) -> str | None:
    """Why kernels that read codes by groups do not read a weight; None where they do."""
    if problem.weight_format.codes is Codes.PLAIN:
        return "for quantized weights"
    if problem.weight_format.codes not in KINDS:
        return f"does not read {problem.weight_format.name}"
    if problem.in_features % _BLOCK:
        return f"for multiples of {_BLOCK} inputs, not {problem.in_features}"
    group = group_size(problem)
    if group != _HALF and group % _BLOCK:
        return f"for groups of {_HALF} or multiples of {_BLOCK} inputs, not {group}"
    return None


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    reason = why_not_groups(problem) or why_not_dtype(problem.dtype, (torch.float32, torch.bfloat16))
    if reason is None and platform.fast_bf16 and problem.dtype == torch.bfloat16:
        return "multiplies in float32, which is slower than bfloat16 is here"
    return reason or native_unavailable("linear_quantized")


def group_size(problem: LinearProblem) -> int:
    """Inputs that share a scale here: a part of the format's group, where that does not divide the inputs."""
    return math.gcd(problem.weight_format.parts["scale"].columns or problem.in_features, problem.in_features)


def code_kind(problem: LinearProblem) -> int:
    """What a code is, as the source numbers it."""
    return KINDS[problem.weight_format.codes]


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    codes = weights["weight"]
    zero, minimum, bias = weights.get("zero_point"), weights.get("minimum"), weights["bias"]
    return {
        "codes": _by_halves(codes) if problem.weight_format.codes.is_packed else codes.contiguous().view(torch.uint8),
        "scale": by_group(problem, scales(problem, weights)),
        "minimum": None if minimum is None else by_group(problem, minimum.float()),
        "zero": None if zero is None else by_group(problem, zero),
        "bias": None if bias is None else bias.float().contiguous(),
    }


def by_group(problem: LinearProblem, scale: torch.Tensor) -> torch.Tensor:
    """One for each row and group of the kernel, from one for each tile of the format."""
    part, group = problem.weight_format.parts["scale"], group_size(problem)
    parts = 1 if part.columns is None else part.columns // group
    spread = scale.repeat_interleave(part.rows, dim=0).repeat_interleave(parts, dim=1)
    return spread[: problem.weight_rows, : problem.in_features // group].contiguous()


def _by_halves(packed: torch.Tensor) -> torch.Tensor:
    low, high = unpack_nibbles(packed).unflatten(-1, (-1, 2, _BLOCK // 2)).unbind(-2)
    return (low | high << 4).flatten(-2).contiguous()


def scales(problem: LinearProblem, weights: Any) -> torch.Tensor:
    """float32 for each tile. Codes of e2m1 are decoded to twice their numbers."""
    scale = problem.weight_format.scales(weights).float()
    return scale / 2 if problem.weight_format.codes is Codes.E2M1 else scale


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    rows, columns = problem.weight_rows, problem.in_features
    groups, parts = columns // group_size(problem), problem.weight_format.parts
    a_group = 4 + ("zero_point" in parts) + 4 * ("minimum" in parts)
    codes = columns // 2 if problem.weight_format.codes.is_packed else columns
    return rows * (codes + groups * a_group + 4 * problem.bias)


def _bind(problem: LinearProblem, packed: Any) -> Callable[..., torch.Tensor]:
    library = load_native("linear_quantized", _FUNCTIONS)
    functions = (library.linear_quantized_f32, library.adapted_linear_quantized_f32)
    names = ("codes", "scale", "minimum", "zero", "bias")
    return over_rows(problem, packed, functions, pointers_of(packed, names), torch.float32)


def pointers_of(packed: Any, names: tuple[str, ...]) -> tuple[int | None, ...]:
    """Where tensors lie; None for those that are None."""
    return tuple(None if packed[name] is None else packed[name].data_ptr() for name in names)


def over_rows(
    problem: LinearProblem,
    packed: Any,
    functions: tuple[Callable[..., int], Callable[..., int]],
    weights: tuple[int | None, ...],
    multiplied: torch.dtype,
) -> Callable[..., torch.Tensor]:
    """What runs a linear by functions of C over packed codes.

    Args:
        packed: what has to live as long.
        functions: the linear, and that with adapters; they return whether there was memory.
        weights: what they take of the weight, between x and the results.
        multiplied: the dtype of their x.
    """
    function, adapted = functions
    kind, group = code_kind(problem), group_size(problem)
    k, n, dtype, out_dtype = problem.in_features, problem.out_features, problem.dtype, problem.result_dtype
    adapters = (k, n, multiplied)

    def run(x: torch.Tensor, low_rank: LowRankTerm | None = None, _keep_alive: Any = packed) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != k:
            raise unplanned("linear", x, k, dtype)
        rows = x.to(multiplied).contiguous()
        num_rows = x.numel() // k
        out = torch.empty(num_rows, n)
        rounded = torch.empty(num_rows, n, dtype=out_dtype) if out_dtype is torch.bfloat16 else None
        results = (out.data_ptr(), None if rounded is None else rounded.data_ptr())
        arguments = (kind, rows.data_ptr(), *weights, *results, num_rows, k, n, group)
        matrices = None if low_rank is None else low_rank.in_c
        if low_rank is None or matrices is None or matrices.kind != adapters:
            done = function(*arguments)
        else:
            done, low_rank = adapted(*arguments, low_rank.places_T.data_ptr(), matrices.address), None
        if not done:
            raise MemoryError(f"no memory for a panel of {k} inputs")
        if low_rank is not None:
            # The kernel multiplies in another dtype than the adapters have.
            low_rank.add(out, x)
            rounded = None
        return (out.to(out_dtype) if rounded is None else rounded).view(*x.shape[:-1], n)

    return run


NATIVE_BACKEND = Backend(
    name="native",
    implementation="C, codes decoded into the caches, rows independent",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("codes by blocks", _pack, _num_bytes),
    most_rows_with_term=MOST_ROWS_WITH_TERM,
)
