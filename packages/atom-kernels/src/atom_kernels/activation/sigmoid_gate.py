"""What a sigmoid gates, as an operator: its backends, problems and inputs to check them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation.contract import SigmoidGateProblem, sigmoid_gate
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.operator import Backend, Op, Work
from atom_kernels.tolerances import elementwise_tolerance
from atom_kernels.triton.launch import launch

_BLOCK = 1024


def _bind_torch(problem: SigmoidGateProblem, weights: Any) -> Callable[..., torch.Tensor]:
    def run(x_TC: torch.Tensor, gate_TGd: torch.Tensor, base_TC: torch.Tensor | None = None) -> torch.Tensor:
        problem.check_inputs(x_TC, gate_TGd, base_TC)
        return sigmoid_gate(x_TC, gate_TGd, base_TC)

    return run


def _bind_triton(problem: SigmoidGateProblem, weights: Any) -> Callable[..., torch.Tensor]:
    from atom_kernels.activation.triton_kernels import sigmoid_gate_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    columns = problem.groups * problem.size
    block = min(_BLOCK, power_of_two(columns))
    options: dict[str, Any] = {
        "SIZE": problem.size, "COLUMNS": columns, "ONE_GATE": problem.one_gate, "BLOCK": block,
    } | dependent_launch()  # fmt: skip

    def run(x_TC: torch.Tensor, gate_TGd: torch.Tensor, base_TC: torch.Tensor | None = None) -> torch.Tensor:
        problem.check_inputs(x_TC, gate_TGd, base_TC)
        x = x_TC.contiguous()
        gate = gate_TGd if gate_TGd.stride(2) == 1 or problem.one_gate else gate_TGd.contiguous()
        base = None if base_TC is None else base_TC.contiguous()
        out = torch.empty_like(x)
        if len(x):
            grid = (len(x), -(-columns // block))
            launch(sigmoid_gate_kernel, grid, x, gate, base, out, gate.stride(0), gate.stride(1), **options)
        return out

    return run


def _make_inputs(problem: SigmoidGateProblem, num_rows: int, generator: torch.Generator) -> Any:
    """Gates lie between other numbers, as those of heads do behind their queries; there is a base."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    columns, gates = problem.groups * problem.size, problem.gates_of_group
    gate = random(num_rows, problem.groups, 2 * gates)[..., gates:]
    return {}, (random(num_rows, columns), gate, random(num_rows, columns))


def _work(problem: SigmoidGateProblem, num_rows: int) -> Work:
    row = problem.groups * (3 * problem.size + problem.gates_of_group)
    return Work(num_rows * row * problem.dtype.itemsize)


SIGMOID_GATE = Op(
    name="sigmoid_gate",
    contract=sigmoid_gate,
    reference=lambda problem, weights, *inputs: sigmoid_gate(*inputs),
    schema="(Tensor x, Tensor gate, Tensor? base=None) -> Tensor",
    fake=lambda problem, x_TC, *rest: torch.empty_like(x_TC),
    backends=(
        Backend(
            name="triton",
            implementation="Triton sigmoid_gate",
            supports=lambda problem, platform: why_not_dtype(problem.dtype, FLOATS),
            bind=_bind_triton,
        ),
        Backend(name="torch", implementation="torch sigmoid_gate", bind=_bind_torch),
    ),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(
        SigmoidGateProblem(groups, size, dtype, one_gate)
        for groups, size in ((1, 1), (3, 7), (1, 1030))
        for dtype in FLOATS
        for one_gate in (False, True)
    ),
    # The attention of Qwen3-Next, and its shared expert.
    examples=lambda: (
        SigmoidGateProblem(16, 256, torch.bfloat16),
        SigmoidGateProblem(1, 2048, torch.bfloat16, one_gate=True),
    ),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)
