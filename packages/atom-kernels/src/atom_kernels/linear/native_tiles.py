"""bfloat16 linear in AMX tiles: one copy of the weight, as tiles read it, and each row's bits whatever its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, WeightLayout

_FUNCTIONS = {"linear_tiles": "pppplll", "has_tiles": "->l"}
# Outputs and inputs that are multiplied together; see the source.
_OUTPUTS, _OUTPUTS_OF_TILE, _INPUTS = 32, 16, 32


def why_no_tiles(library: str, functions: Any, problem: LinearProblem, platform: Any) -> str | None:
    """Why functions of `library` that multiply in tiles do not serve a linear; None where they do."""
    if (reason := why_not_dtype(problem.dtype, (torch.bfloat16,))) is not None:
        return reason
    if problem.result_dtype != torch.bfloat16:
        return f"rounds to bfloat16, not {problem.result_dtype}"
    if problem.in_features % _INPUTS:
        return f"for multiples of {_INPUTS} inputs, not {problem.in_features}"
    if "amx_bf16" not in platform.cpu_features:
        return "for CPUs with amx_bf16"
    if (reason := native_unavailable(library)) is not None:
        return reason
    return None if load_native(library, functions).has_tiles() else "this process may not use AMX tiles"


def with_tiles(library: str, functions: Any) -> Any:
    """The functions of `library`; the system is asked to let this process use tiles, or it would end it."""
    loaded = load_native(library, functions)
    loaded.has_tiles()
    return loaded


def of_blocks(of_outputs: torch.Tensor) -> torch.Tensor:
    """``[N, ...]`` as ``[N / 16, 16, ...]``, with zeros for the outputs that fill up pairs of blocks."""
    blocks = of_outputs.new_zeros(len(of_outputs) + -len(of_outputs) % _OUTPUTS, *of_outputs.shape[1:])
    blocks[: len(of_outputs)] = of_outputs
    return blocks.unflatten(0, (-1, _OUTPUTS_OF_TILE))


def by_tiles(weight: torch.Tensor) -> torch.Tensor:
    """``[N, K]`` as ``[N / 16, K / 32, 16 pairs of inputs, 16 outputs, 2]``, which right tiles read."""
    return of_blocks(weight).unflatten(2, (-1, _INPUTS // 2, 2)).permute(0, 2, 3, 1, 4)


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    return problem.why_not_plain() or why_no_tiles("linear_tiles", _FUNCTIONS, problem, platform)


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    bias = weights["bias"]
    return {
        "weight": by_tiles(weights["weight"]).contiguous(),
        "bias": None if bias is None else bias.contiguous(),
    }


def over_rows(
    problem: LinearProblem, multiply: Callable[[int, int, int], None]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear by ``multiply(address of x, address of the result, rows)``, both in bfloat16."""
    k, n, dtype = problem.in_features, problem.out_features, problem.dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != k:
            raise unplanned("linear", x, k, dtype)
        x = x.contiguous()
        out = torch.empty(x.numel() // k, n, dtype=dtype)
        multiply(x.data_ptr(), out.data_ptr(), len(out))
        return out.view(*x.shape[:-1], n)

    return run


def _bind(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    function, k, n = with_tiles("linear_tiles", _FUNCTIONS).linear_tiles, problem.in_features, problem.out_features
    weight, bias = packed["weight"].data_ptr(), None if packed["bias"] is None else packed["bias"].data_ptr()

    def multiply(x: int, out: int, num_rows: int, _keep_alive: Any = packed) -> None:
        function(x, weight, bias, out, num_rows, k, n)

    return over_rows(problem, multiply)


TILES_BACKEND = Backend(
    name="native",
    implementation="AMX tiles, weight packed once, rows independent",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("amx_tiles", pack=_pack),
)
