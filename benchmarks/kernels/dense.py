"""Norms, gated activations and linears."""

from __future__ import annotations

from collections.abc import Iterator

from atom_kernels.activation import SILU_AND_MUL, GatedActivationProblem
from atom_kernels.linear import OP as LINEAR
from atom_kernels.linear import LinearProblem
from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from benchmarks.kernels.case import DTYPE, KernelCase, operator_case, random
from benchmarks.kernels.shapes import ModelShape


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
            gated = GatedActivationProblem(size, DTYPE)
            yield operator_case(
                *(SILU_AND_MUL, gated, count, model, f"{size}"),
                lambda count=count, size=size: (random(count, 2 * size),),
            )
        for name, (inputs, outputs, bias) in shape.linears.items():
            problem = LinearProblem(inputs, outputs, DTYPE, bias)
            # Prompts need logits of their last tokens only.
            if name != "lm_head" or count <= 256:
                yield operator_case(
                    *(LINEAR, problem, count, model, name),
                    lambda count=count, inputs=inputs: (random(count, inputs),),
                )
