"""Experts' matrices in a layout that a backend of linears has for one: packed one expert after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from atom_kernels.linear.contract import LinearProblem
from atom_kernels.moe.contract import ExpertMatrix, ExpertsProblem
from atom_kernels.operator import WeightLayout


def linear_of(matrix: ExpertMatrix, dtype: torch.dtype) -> LinearProblem:
    """One expert's product with rows in `dtype` as a linear without a bias, whose codes are packed alike."""
    return LinearProblem(matrix.columns, matrix.rows, dtype, weight_format=matrix.held)


def pack_experts(
    problem: ExpertsProblem, weights: Mapping[str, torch.Tensor | None], layout: WeightLayout, dtype: torch.dtype
) -> dict[str, torch.Tensor | None]:
    """Tensors of the layout for all experts, ``gate_up_codes`` and so on, and the biases in `dtype`."""
    packed: dict[str, torch.Tensor | None] = {}
    for matrix in problem.matrices.values():
        packed |= _pack_matrix(matrix, weights, problem.num_experts, layout=layout, dtype=dtype)
        bias = weights[f"{matrix.name}_bias"]
        packed[f"{matrix.name}_bias"] = None if bias is None else bias.to(dtype).contiguous()
    return packed


def packed_bytes(problem: ExpertsProblem, layout: WeightLayout, dtype: torch.dtype) -> int:
    """Bytes of what `pack_experts` makes."""
    biases = [dtype.itemsize * matrix.rows * problem.bias for matrix in problem.matrices.values()]
    matrices = [layout.num_bytes(linear_of(matrix, dtype), 0) for matrix in problem.matrices.values()]
    return problem.num_experts * (sum(matrices) + sum(biases))


def _pack_matrix(
    matrix: ExpertMatrix,
    weights: Mapping[str, torch.Tensor | None],
    num_experts: int,
    layout: WeightLayout,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor | None]:
    """One expert after the other: packing takes several copies of what it packs."""
    linear = linear_of(matrix, dtype)
    stacked: dict[str, torch.Tensor | None] = {}
    for expert in range(num_experts):
        parts = layout.pack(linear, {**matrix.of_expert(weights, expert), "bias": None})
        for name, tensor in _without_bias(parts):
            at = f"{matrix.name}_{name}"
            if expert == 0:
                stacked[at] = None if tensor is None else tensor.new_empty((num_experts, *tensor.shape))
            if (stack := stacked[at]) is not None and tensor is not None:
                stack[expert].copy_(tensor)
    return stacked


def _without_bias(parts: Mapping[str, torch.Tensor | None]) -> Iterable[tuple[str, torch.Tensor | None]]:
    return ((name, tensor) for name, tensor in parts.items() if name != "bias")
