"""Experts in int4 with a scale for each 32 inputs, as Kimi-K2-Thinking publishes them: `fused_moe` leaves rows alone.

AITER's kernels read bytes of two numbers, four columns apart, and pairs of neighboring scales in bfloat16; its own
helpers bring both into that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from atom_kernels.activation.names import Activation
from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.moe.int4_codes import numbers_of
from atom_kernels.formats import Integers
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.moe.contract import ExpertsProblem

_GROUP, _SHUFFLE = 32, (16, 16)
_HELD = Integers(4, _GROUP, scale_dtype=torch.bfloat16)
# Both products sum over tiles of so many inputs.
_TILE = 256
_FUNCTIONS = ("fused_moe", "shuffle_weight", "pack_int8_to_packed_int4", "shuffle_scale_for_int4")


def _supports(problem: ExpertsProblem, platform: Platform) -> str | None:
    if problem.activation != Activation.SILU or problem.bias:
        bias = " and biases" if problem.bias else ""
        return f"fused_moe of int4 is called for silu without biases, not {problem.activation}{bias}"
    held = {problem.matrices[name].held for name in ("gate_up", "down")}
    if held != {_HELD}:
        names = " and ".join(sorted(one.name for one in held))
        return f"fused_moe of int4 takes {_HELD.name} with scales in bfloat16, not {names} with others"
    if problem.dtype is not torch.bfloat16:
        return f"fused_moe of int4 takes and gives bfloat16, not {problem.dtype}"
    if problem.batch_invariant:
        return "fused_moe chooses its kernels by the number of tokens"
    if problem.hidden_size % _TILE or problem.intermediate_size % _GROUP:
        size = f"{problem.hidden_size} x {problem.intermediate_size}"
        return f"fused_moe of int4 takes hidden sizes of whole {_TILE}, and whole groups of {_GROUP}, not {size}"
    api = api_of(platform)
    return next((reason for name in _FUNCTIONS if (reason := api.why_not(name))), None)


def padded_size(problem: ExpertsProblem) -> int:
    """The intermediate size in whole tiles: rows and columns of zeros change nothing."""
    return -(-problem.intermediate_size // _TILE) * _TILE


def _pack(problem: ExpertsProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    size, missing = problem.intermediate_size, padded_size(problem) - problem.intermediate_size
    gate_up, gate_up_scale, down = numbers_of(weights["gate_up"]), weights["gate_up_scale"], numbers_of(weights["down"])
    if missing:
        gate_up, gate_up_scale = (_fill_halves(one, size, missing) for one in (gate_up, gate_up_scale))
    down, down_scale = pad(down, (0, missing)), pad(weights["down_scale"], (0, missing // _GROUP))
    return {
        "gate_up": _machine_codes(gate_up),
        "gate_up_scale": _machine_scales(gate_up_scale),
        "down": _machine_codes(down),
        "down_scale": _machine_scales(down_scale),
    }


def _fill_halves(tensor: torch.Tensor, size: int, missing: int) -> torch.Tensor:
    """Rows of zeros after those of the gate, and after those of up."""
    return torch.cat([pad(half, (0, 0, 0, missing)) for half in tensor.split(size, dim=1)], dim=1)


def _machine_codes(numbers_ENK: torch.Tensor) -> torch.Tensor:
    """int8 of -8 to 7 -> bytes of two, ``[E, N, K / 2]``."""
    shuffled = library().bind("shuffle_weight", "x", layout=_SHUFFLE)(numbers_ENK)
    packed = library().bind("pack_int8_to_packed_int4", "x_shuf_i8")(shuffled)
    return packed.view(*numbers_ENK.shape[:2], -1)


def _machine_scales(scale_ENG: torch.Tensor) -> torch.Tensor:
    """Flat: for each expert and pair of groups, the two scales of each row."""
    shuffle = library().bind("shuffle_scale_for_int4", "scale", group_size=_GROUP)
    return shuffle(scale_ENG.transpose(1, 2)).view(-1)


def _num_bytes(problem: ExpertsProblem, source_bytes: int) -> int:
    # Half a byte for a number, and two bytes for the scale of each 32.
    numbers = problem.num_experts * 3 * problem.hidden_size * padded_size(problem)
    return numbers // 2 + numbers // _GROUP * 2


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    from atom_kernels.aiter.moe.experts import bind_fused_moe

    codes = {name: _named(weights[name]) for name in ("gate_up", "down")}
    scales = {"w1_scale": weights["gate_up_scale"], "w2_scale": weights["down_scale"]}
    return bind_fused_moe(problem, codes, "per_1x32", aligned_to=16, **scales)


def _named(codes: torch.Tensor) -> torch.Tensor:
    """The same bytes, as the dtype and with the mark by which `fused_moe` knows them."""
    named = codes.view(library().package.dtypes.i4x2)
    named.is_shuffled = True  # type: ignore[attr-defined]
    return named


GROUPED_INT4_BACKEND = Backend(
    name="aiter",
    implementation="AITER fused_moe of int4 in groups",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("aiter_shuffled_int4_experts", _pack, _num_bytes),
)
