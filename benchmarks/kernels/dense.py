"""Norms, gated activations and linears, alone and with their neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_kernels.tuned.graph_timing import num_copies
from benchmarks.kernels.case import DTYPE, Call, KernelCase, Sides, bind, operator_case, random, serving_row
from benchmarks.kernels.shapes import ModelShape

# Linears that a layer runs with what is before or after them.
NORM_BEFORE, RESIDUAL_AFTER = ("qkv_proj", "gate_up_proj"), ("o_proj", "down_proj")
_EPS = 1e-6


def cases(model: str, shape: ModelShape, rows: tuple[int, ...]) -> Iterator[KernelCase]:
    hidden = shape.hidden_size
    norm = RMSNormProblem(hidden, DTYPE)
    for count in rows:
        yield operator_case(RMS_NORM, norm, count, model, f"{hidden}", lambda count=count: (random(count, hidden),))
        yield operator_case(
            *(ADD_RMS_NORM, norm, count, model, f"{hidden}"),
            lambda count=count: (random(count, hidden), random(count, hidden)),
        )
        if size := shape.intermediate_size:
            gated = GatedActivationProblem(size, DTYPE, Activation.SILU)
            yield operator_case(
                *(GATED_ACTIVATION, gated, count, model, f"{size}"),
                lambda count=count, size=size: (random(count, 2 * size),),
            )
        for name, (inputs, outputs, bias) in shape.linears.items():
            # Prompts need logits of their last tokens only.
            if name != "lm_head" or count <= 256:
                yield _linear_case(model, name, inputs, outputs, bias, count)
            if name in NORM_BEFORE + RESIDUAL_AFTER:
                for held, rounded in shape.packed_linears:
                    problem = replace(linear_problem(name, inputs, outputs, bias), weight_format=held)
                    yield _fused_case(model, name, replace(problem, input_format=rounded), count)


def _linear_case(model: str, name: str, inputs: int, outputs: int, bias: bool, count: int) -> KernelCase:
    problem = linear_problem(name, inputs, outputs, bias)
    if problem.neighbors:
        return _fused_case(model, name, problem, count)
    return operator_case(LINEAR, problem, count, model, name, lambda: (random(count, inputs),))


def linear_problem(name: str, inputs: int, outputs: int, bias: bool) -> LinearProblem:
    """A linear of `ModelShape.linears`, with the neighbors that it has in a layer; logits are float32."""
    if name not in NORM_BEFORE + RESIDUAL_AFTER:
        return LinearProblem(inputs, outputs, DTYPE, bias, torch.float32 if name == "lm_head" else None)
    gated = name == "gate_up_proj"
    return LinearProblem(inputs, outputs // 2 if gated else outputs, DTYPE, bias, gated=gated, neighbors=True)


def _fused_case(model: str, name: str, problem: LinearProblem, num_rows: int) -> KernelCase:
    """A linear with its norm, activation or residual, beside torch's operators one after the other."""
    work = LINEAR.work(problem, num_rows)

    def build() -> Sides:
        plan = select(LINEAR, problem)
        norm = random(problem.in_features) if name in NORM_BEFORE else None
        ours: list[Call] = []
        theirs: list[Call] = []
        for _ in range(num_copies(work.num_bytes)):
            weight = random(problem.weight_rows, problem.in_features, scale=0.02)
            bias = random(problem.weight_rows, scale=0.02) if problem.bias else None
            residual = random(num_rows, problem.out_features) if name in RESIDUAL_AFTER else None
            x = random(num_rows, problem.in_features)
            # The numbers of packed weights are multiplied as plain ones by torch.
            packed = {"weight": weight} if problem.is_plain else problem.weight_format.quantize(weight)
            ours.append(bind(plan.prepare({**packed, "bias": bias}), (x, norm, _EPS, 0.0, residual)))
            theirs.append(bind(plain_linear(problem, weight, bias), (x, norm, residual)))
        return Sides(serving_row(plan, num_rows).implementation, ours, theirs)

    what = {"qkv_proj": "norm, ", "gate_up_proj": "norm, "}.get(name, "")
    after = "silu, " if problem.gated else "residual, " if name in RESIDUAL_AFTER else ""
    held = "" if problem.is_plain else f"in {problem.weight_format.name}, "
    return KernelCase("linear", model, f"{what}{name}, {held}{after}rows {num_rows}", work, build)


def plain_linear(
    problem: LinearProblem, weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]:
    """What torch runs for the same: ``(x, norm weight, residual) -> out``."""

    def run(x: torch.Tensor, norm: torch.Tensor | None, residual: torch.Tensor | None) -> torch.Tensor:
        x = x if norm is None else F.rms_norm(x, (problem.in_features,), norm, _EPS)
        out = F.linear(x, weight, bias)
        if problem.gated:
            gate, up = out.chunk(2, dim=-1)
            out = F.silu(gate) * up
        return out if residual is None else out + residual

    return run
