"""The gated norm as an operator: its backends, problems and inputs to check them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.norm import native
from atom_kernels.norm.contract import GatedRMSNormProblem, RMSNormProblem, gated_rms_norm
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.tolerances import elementwise_tolerance
from atom_kernels.triton.launch import launch

_Norm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Elements of a Triton program: several groups of a row, or one.
_ELEMENTS = 1024


def _of_groups(problem: GatedRMSNormProblem) -> RMSNormProblem:
    return RMSNormProblem(problem.hidden_size, problem.dtype, problem.eps)


def _check(problem: GatedRMSNormProblem, *rows: torch.Tensor) -> None:
    columns = problem.groups * problem.hidden_size
    for x in rows:
        if x.dtype is not problem.dtype or x.shape[-1] != columns:
            raise unplanned("gated_rms_norm", x, columns, problem.dtype)


def _bind_torch(problem: GatedRMSNormProblem, weights: Any) -> _Norm:
    weight, shape, eps = weights["weight"], (problem.hidden_size,), problem.eps
    return _gating(problem, lambda x: torch.nn.functional.rms_norm(x, shape, weight, eps))


def _bind_native(problem: GatedRMSNormProblem, weights: Any) -> _Norm:
    return _gating(problem, native.RMS_NORM_BACKEND.bind(_of_groups(problem), weights))


def _gating(problem: GatedRMSNormProblem, norm: Callable[[torch.Tensor], torch.Tensor]) -> _Norm:
    """A norm of the groups, then torch's product."""
    groups = (problem.groups, problem.hidden_size)

    def run(x_TC: torch.Tensor, gate_TC: torch.Tensor) -> torch.Tensor:
        _check(problem, x_TC, gate_TC)
        normed = norm(x_TC.unflatten(-1, groups)).flatten(-2)
        return (normed * torch.nn.functional.silu(gate_TC.float())).to(x_TC.dtype)

    return run


def _supports_native(problem: GatedRMSNormProblem, platform: Any) -> str | None:
    return native.RMS_NORM_BACKEND.supports(_of_groups(problem), platform)


def _supports_triton(problem: GatedRMSNormProblem, platform: Any) -> str | None:
    if problem.hidden_size > _ELEMENTS:
        return f"norms up to {_ELEMENTS} elements at a time, not {problem.hidden_size}"
    return why_not_dtype(problem.dtype, FLOATS)


def _bind_triton(problem: GatedRMSNormProblem, weights: Any) -> _Norm:
    from atom_kernels.norm.triton_kernels import gated_rms_norm_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    weight, block = weights["weight"].contiguous(), power_of_two(problem.hidden_size)
    groups = min(_ELEMENTS // block, power_of_two(problem.groups))
    options: dict[str, Any] = {
        "GROUPS": problem.groups, "SIZE": problem.hidden_size, "BLOCK_GROUPS": groups, "BLOCK": block, "num_warps": 4,
    } | dependent_launch()  # fmt: skip

    def run(x_TC: torch.Tensor, gate_TC: torch.Tensor) -> torch.Tensor:
        _check(problem, x_TC, gate_TC)
        x, gate = x_TC.contiguous(), gate_TC if gate_TC.stride(-1) == 1 and gate_TC.dim() == 2 else gate_TC.contiguous()
        out = torch.empty_like(x)
        num_rows, stride = x.numel() // x.shape[-1], gate.stride(-2) if gate.dim() > 1 else gate.shape[-1]
        if num_rows:
            grid = (num_rows, -(-problem.groups // groups))
            launch(gated_rms_norm_kernel, grid, x, gate, weight, out, stride, problem.eps, **options)
        return out

    return run


def _make_inputs(problem: GatedRMSNormProblem, num_rows: int, generator: torch.Generator) -> Any:
    """The gates are a part of wider rows, as a projection gives them."""
    columns = problem.groups * problem.hidden_size

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    weights = {"weight": random(problem.hidden_size) * 0.1 + 1}
    return weights, (random(num_rows, columns) * 3, random(num_rows, 2 * columns)[:, columns:])


def _work(problem: GatedRMSNormProblem, num_rows: int) -> Work:
    return Work((3 * num_rows * problem.groups + 1) * problem.hidden_size * problem.dtype.itemsize)


GATED_RMS_NORM = Op(
    name="gated_rms_norm",
    contract=gated_rms_norm,
    reference=lambda problem, weights, x_TC, gate_TC: gated_rms_norm(x_TC, gate_TC, weights["weight"], problem.eps),
    schema="(Tensor x, Tensor gate) -> Tensor",
    fake=lambda problem, x_TC, gate_TC: torch.empty_like(x_TC),
    backends=(
        Backend(name="triton", implementation="Triton gated_rms_norm", supports=_supports_triton, bind=_bind_triton),
        Backend(name="native", implementation="C rms_norm, torch silu", supports=_supports_native, bind=_bind_native),
        Backend(name="torch", implementation="torch rms_norm, silu", bind=_bind_torch),
    ),
    weights=lambda problem: {"weight": WeightSpec((problem.hidden_size,), problem.dtype)},
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(
        GatedRMSNormProblem(size, groups, dtype, 1e-5)
        for size, groups in ((1, 1), (7, 3), (24, 5), (128, 9))
        for dtype in FLOATS
    ),
    examples=lambda: (GatedRMSNormProblem(128, 32, torch.bfloat16),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)
