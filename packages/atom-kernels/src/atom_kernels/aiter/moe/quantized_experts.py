"""Quantized experts on AITER: `fused_moe` with weights in fp8 by rows or tiles, in int4 by rows, or in MXFP4 on MI355X.

It rounds the rows of both products to the weights' format (those of int4 to fp8), as `ExpertsProblem.input_format` must
allow. MXFP4 experts whose rows must stay as they are (GPT-OSS), swiglu and biases go on to the next backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from atom_kernels.activation.names import Activation
from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.moe.int4_codes import numbers_of, to_machine_int4
from atom_kernels.aiter.quantized.float8_codes import to_machine_float8
from atom_kernels.aiter.quantized.linears import ALIGNED
from atom_kernels.formats import Float8, Integers, Mxfp4, WeightFormat, num_bytes
from atom_kernels.operator import Backend, Tolerance, WeightLayout
from atom_kernels.platform import Platform, detect_platform

if TYPE_CHECKING:
    from atom_kernels.moe.contract import ExpertsProblem

_SHUFFLE = (16, 16)
# The format of weights -> AITER's name of it, the rows' format, and the multiples of both sizes that kernels take.
_KINDS: dict[WeightFormat, tuple[str, WeightFormat, int]] = {
    Float8(): ("per_Token", Float8(), 128),
    Integers(4): ("per_Token", Float8(), 128),
    Float8(128, 128): ("per_1x128", Float8(1, 128), 128),
    Mxfp4(): ("per_1x32", Mxfp4(), 256),
}
_FP4_BLOCK = 32
_INT4_ROWS = tuple(Integers(4, scale_dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))


def _held(problem: ExpertsProblem, name: str) -> WeightFormat:
    """The format of a matrix, whose scales become float32 whatever they are stored in."""
    held = problem.matrices[name].held
    return Integers(4) if held in _INT4_ROWS else held


def _supports(problem: ExpertsProblem, platform: Platform) -> str | None:
    if problem.activation != Activation.SILU or problem.bias:
        bias = " and biases" if problem.bias else ""
        return f"quantized, fused_moe is called for silu without biases, not {problem.activation}{bias}"
    gate_up, down = _held(problem, "gate_up"), _held(problem, "down")
    if gate_up not in _KINDS or gate_up != down:
        names = " and ".join(dict.fromkeys((gate_up.name, down.name)))
        return f"fused_moe is called for experts in {', '.join(one.name for one in _KINDS)}, not in {names}"
    _, inputs, multiple = _KINDS[gate_up]
    if problem.input_format != inputs:
        allowed = "not rounded" if problem.input_format is None else f"rounded to {problem.input_format.name}"
        return f"fused_moe rounds rows to {inputs.name}, and rows of these experts are {allowed}"
    if gate_up == Mxfp4() and platform.arch != "gfx950":
        return f"MXFP4 is multiplied on gfx950, not on {platform.arch}"
    if problem.dtype is not torch.bfloat16:
        return f"fused_moe of quantized experts gives bfloat16, not {problem.dtype}"
    if problem.batch_invariant:
        return "fused_moe chooses its kernels by the number of tokens"
    size = problem.intermediate_size
    if problem.hidden_size % multiple or (gate_up == Float8(128, 128) and size % multiple):
        return f"fused_moe takes tiles of {multiple}, which {problem.hidden_size} x {size} do not fill"
    if gate_up == Mxfp4() and size % _FP4_BLOCK:
        return f"fused_moe takes blocks of {_FP4_BLOCK}, which {size} does not fill"
    api = api_of(platform)
    reason = api.why_not("fused_moe", "w1_scale", "w2_scale") or api.why_not("shuffle_weight")
    return reason or (api.why_not("e8m0_shuffle") if gate_up == Mxfp4() else None)


def padded_size(problem: ExpertsProblem) -> int:
    """The intermediate size in whole tiles: rows and columns of zeros change nothing."""
    multiple = _KINDS[_held(problem, "gate_up")][2]
    return -(-problem.intermediate_size // multiple) * multiple


def _pack(problem: ExpertsProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    size, missing = problem.intermediate_size, padded_size(problem) - problem.intermediate_size
    gate_up, gate_up_scale = weights["gate_up"], weights["gate_up_scale"]
    down, down_scale = weights["down"], weights["down_scale"]
    if _held(problem, "gate_up") == Integers(4):
        gate_up, down = numbers_of(gate_up), numbers_of(down)
    if missing:
        gate_up, gate_up_scale = _fill_halves(gate_up, size, missing), _fill_halves(gate_up_scale, size, missing)
        down = _fill(down, (0, missing * down.shape[2] // size))
        if problem.matrices["down"].held == Mxfp4():
            down_scale = _fill(down_scale, (0, missing // _FP4_BLOCK))
    return _machine_parts("gate_up", gate_up, gate_up_scale) | _machine_parts("down", down, down_scale)


def _fill(tensor: torch.Tensor, amount: tuple[int, ...]) -> torch.Tensor:
    """Zeros after the last columns (or rows, by another amount); as bytes, since not all formats can be filled."""
    width = tensor.element_size()
    return pad(tensor.contiguous().view(torch.uint8), (0, amount[1] * width, *amount[2:])).view(tensor.dtype)


def _fill_halves(tensor: torch.Tensor, size: int, missing: int) -> torch.Tensor:
    """Rows of zeros after those of the gate, and after those of up."""
    return torch.cat([_fill(half, (0, 0, 0, missing)) for half in tensor.split(size, dim=1)], dim=1)


def _machine_parts(name: str, codes: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """A matrix of all experts as AITER's kernels read it, in the machine's number format."""
    if codes.dtype is torch.int8:
        return {name: to_machine_int4(codes), f"{name}_scale": scale.float().contiguous()}
    shuffle = library().bind("shuffle_weight", "x", layout=_SHUFFLE)
    if codes.dtype is torch.uint8:
        codes = codes.view(library().package.dtypes.fp4x2)
        scale = library().bind("e8m0_shuffle", "scale")(scale.reshape(-1, scale.shape[-1]))
    else:
        codes, scale = to_machine_float8(codes, scale, detect_platform())
    return {name: shuffle(codes), f"{name}_scale": scale.contiguous()}


def _num_bytes(problem: ExpertsProblem, source_bytes: int) -> int:
    hidden, size = problem.hidden_size, padded_size(problem)
    held = _held(problem, "gate_up")
    sizes = ((2 * size, hidden), (hidden, size))
    return problem.num_experts * sum(num_bytes(held, rows, columns) for rows, columns in sizes)


def _bind(problem: ExpertsProblem, weights: Any) -> Callable[..., torch.Tensor]:
    from atom_kernels.aiter.moe.experts import bind_fused_moe

    scales = {"w1_scale": weights["gate_up_scale"], "w2_scale": weights["down_scale"]}
    quant_type, _, _ = _KINDS[_held(problem, "gate_up")]
    return bind_fused_moe(problem, weights, quant_type, aligned_to=ALIGNED, **scales)


def _tolerance(problem: ExpertsProblem) -> Tolerance:
    """For results of about one: what rounding rows to the format leaves, which the reference does not do."""
    return Tolerance(0.9, 0.1) if problem.input_format == Mxfp4() else Tolerance(0.2, 0.05)


QUANTIZED_BACKEND = Backend(
    name="aiter",
    implementation="AITER fused_moe of quantized experts",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("aiter_shuffled_quantized_experts", _pack, _num_bytes),
    tolerance=_tolerance,
)
