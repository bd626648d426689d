"""bfloat16 linear in AMX tiles: one copy of the weight, and each row's bits whatever its batch.

Where results are bfloat16 the weight is packed as tiles read it. Where they are float32, as logits are, it stays as
loaded: it may be the table of embeddings, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, WeightLayout

_FUNCTIONS = {"linear_tiles": "pppplll", "has_tiles": "->l"}
_FUNCTIONS_F32 = {"linear_tiles_f32": "pppplllp", "has_tiles": "->l"}
# Outputs, or rows, and inputs that are multiplied together; see the sources.
_OUTPUTS, _OUTPUTS_OF_TILE, _INPUTS = 32, 16, 32


def why_no_tiles(
    library: str, functions: Any, problem: LinearProblem, platform: Any, *, result_dtype: torch.dtype = torch.bfloat16
) -> str | None:
    """Why functions of `library` that multiply in tiles do not serve a linear; None where they do."""
    if (reason := why_not_dtype(problem.dtype, (torch.bfloat16,))) is not None:
        return reason
    if problem.result_dtype != result_dtype:
        return f"gives {result_dtype}, not {problem.result_dtype}"
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
    missing = -len(of_outputs) % _OUTPUTS
    if missing:
        of_outputs = torch.cat((of_outputs, of_outputs.new_zeros(missing, *of_outputs.shape[1:])))
    return of_outputs.unflatten(0, (-1, _OUTPUTS_OF_TILE))


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
    """A linear by ``multiply(address of x, address of the result, rows)``."""
    k, n, dtype, result_dtype = problem.in_features, problem.out_features, problem.dtype, problem.result_dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != k:
            raise unplanned("linear", x, k, dtype)
        x = x.contiguous()
        out = torch.empty(x.numel() // k, n, dtype=result_dtype)
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


def _supports_f32(problem: LinearProblem, platform: Any) -> str | None:
    return problem.why_not_plain() or why_no_tiles(
        "linear_tiles_f32", _FUNCTIONS_F32, problem, platform, result_dtype=torch.float32
    )


def _bind_f32(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    function = with_tiles("linear_tiles_f32", _FUNCTIONS_F32).linear_tiles_f32
    k, n, dtype = problem.in_features, problem.out_features, problem.dtype
    kept = [None if one is None else one.contiguous() for one in (weights["weight"], weights["bias"])]
    weight, bias = (None if one is None else one.data_ptr() for one in kept)

    def multiply(x: int, out: int, num_rows: int, _keep_alive: Any = kept) -> None:
        packed = torch.empty(num_rows + -num_rows % _OUTPUTS, k, dtype=dtype)
        function(x, weight, bias, out, num_rows, k, n, packed.data_ptr())

    return over_rows(problem, multiply)


TILES_F32_BACKEND = Backend(
    name="native",
    implementation="AMX tiles, weight as loaded, rows independent",
    supports=_supports_f32,
    bind=_bind_f32,
)
