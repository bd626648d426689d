"""int8 for calls of few rows beside plain weights for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom_kernels.formats import Integers
from atom_kernels.linear import OP, LinearProblem
from atom_kernels.operator import Layout
from atom_kernels.plan import Plan, PlanRow
from atom_kernels.select import select
from atom_models.quantization.scheme import LinearScheme, LinearSpec


@dataclass(frozen=True)
class Int8FewRows(LinearScheme):
    """int8 for calls of few rows, which wait for memory; the dense weights for more, which wait for arithmetic.

    Holds both copies: 1.5 times the memory of bfloat16 alone.
    """

    max_rows: int = 4

    def plan(self, spec: LinearSpec) -> Plan:
        problem = LinearProblem(spec.in_features, spec.out_features, spec.dtype, spec.bias)
        dense = select(OP, problem, spec.platform)
        few = _int8_plan(spec)
        row = few.rows[0]

        def bind(_: Any, packed: Mapping[str, torch.Tensor | None]) -> Callable[..., Any]:
            return row.bind(few.problem, packed)

        def pack(_: Any, weights: Mapping[str, torch.Tensor | None]) -> Mapping[str, torch.Tensor | None]:
            return row.layout.pack(few.problem, _quantize(weights))

        num_bytes = row.layout.num_bytes(few.problem, OP.source_bytes(few.problem))
        layout = Layout("int8", pack=pack, num_bytes=lambda problem, source_bytes: num_bytes)
        rows = (PlanRow(self.max_rows, row.backend, row.implementation, layout, bind), *dense.rows)
        layouts = (("int8", num_bytes), *dense.layouts)
        return replace(dense, rows=rows, layouts=layouts)


def _int8_plan(spec: LinearSpec) -> Plan:
    problem = LinearProblem(spec.in_features, spec.out_features, spec.dtype, spec.bias, weight_format=Integers(8))
    return select(OP, problem, spec.platform)


def _quantize(weights: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    source = weights["weight"]
    if source is None:
        raise ValueError("int8: there is no weight to quantize")
    return {**Integers(8).quantize(source), "bias": weights["bias"]}
