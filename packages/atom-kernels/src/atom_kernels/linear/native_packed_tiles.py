"""Linear in AMX tiles over packed codes, which a thread decodes into its caches as tiles read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.formats import Codes, unpack_nibbles
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.native_quantized import KINDS, by_group, code_kind, group_size, scales
from atom_kernels.linear.native_tiles import by_tiles, of_blocks, over_rows, why_no_tiles, with_tiles
from atom_kernels.operator import Backend, WeightLayout

_FUNCTIONS = {"linear_packed_tiles": "lpppppppllll->l", "has_tiles": "->l"}
_HALF_OF_TILE, _TILE = 16, 32


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if problem.weight_format.codes is Codes.PLAIN:
        return "for quantized weights"
    if problem.weight_format.codes not in KINDS:
        return f"does not read {problem.weight_format.name}"
    group = group_size(problem)
    if group != _HALF_OF_TILE and group % _TILE:
        return f"for groups of {_HALF_OF_TILE} or multiples of {_TILE} inputs, not {group}"
    return why_no_tiles("linear_packed_tiles", _FUNCTIONS, problem, platform)


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    codes, is_packed = weights["weight"], problem.weight_format.codes.is_packed
    tiles = by_tiles(unpack_nibbles(codes) if is_packed else codes.contiguous().view(torch.uint8))
    if is_packed:
        low, high = tiles.chunk(2, dim=2)  # the first eight pairs of inputs, and the others
        tiles = low | high << 4
    zero, minimum, bias = weights.get("zero_point"), weights.get("minimum"), weights["bias"]
    of_groups = {"scale": scales(problem, weights), "minimum": minimum, "zero": zero}
    return {
        "codes": tiles.contiguous(),
        "bias": None if bias is None else bias.contiguous(),
        **{name: None if one is None else _by_blocks(problem, one) for name, one in of_groups.items()},
    }


def _by_blocks(problem: LinearProblem, of_groups: torch.Tensor) -> torch.Tensor:
    """``[N / 16, groups, 16]`` in float32."""
    return of_blocks(by_group(problem, of_groups)).transpose(1, 2).float().contiguous()


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    rows, columns, parts = problem.weight_rows, problem.in_features, problem.weight_format.parts
    of_a_group = 4 * (1 + ("zero_point" in parts) + ("minimum" in parts))
    codes = columns // 2 if problem.weight_format.codes.is_packed else columns
    padded = rows + -rows % 32
    return padded * (codes + columns // group_size(problem) * of_a_group) + rows * 2 * problem.bias


def _bind(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    function = with_tiles("linear_packed_tiles", _FUNCTIONS).linear_packed_tiles
    names = ("codes", "scale", "minimum", "zero", "bias")
    pointers = [None if packed[name] is None else packed[name].data_ptr() for name in names]
    kind, group, k, n = code_kind(problem), group_size(problem), problem.in_features, problem.out_features

    def multiply(x: int, out: int, num_rows: int, _keep_alive: Any = packed) -> None:
        if not function(kind, x, *pointers, out, num_rows, k, n, group):
            raise MemoryError(f"no memory for the weight of 32 outputs and {k} inputs")

    return over_rows(problem, multiply)


PACKED_TILES_BACKEND = Backend(
    name="native",
    implementation="AMX tiles, codes decoded into the caches, rows independent",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("codes by tiles", _pack, _num_bytes),
)
