"""Experts in C over packed codes: panels of them are decoded into the caches, and multiplied as float32."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from atom_kernels.dtypes import why_not_dtype
from atom_kernels.linear import native_quantized as packed_linear
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.moe.contract import ExpertMatrix, ExpertsProblem
from atom_kernels.moe.native import bind_experts, why_not_activation
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, Layout

_SIGNATURES = {"moe_experts_f32": "ppppppppllllllffp->l", "moe_workspace_bytes": "llllll->l"}
# Tensors of a packed matrix, in the order of the C structure.
_TENSORS = ("codes", "scale", "minimum", "zero")


class _Packed(ctypes.Structure):
    """`packed_t` of the source: one matrix of all experts."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _TENSORS),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
    )


def _linear(matrix: ExpertMatrix) -> LinearProblem:
    """One expert's product as a linear, whose codes are packed alike; rows are float32 here, whatever x has."""
    return LinearProblem(matrix.columns, matrix.rows, torch.float32, weight_format=matrix.held)


def _supports(problem: ExpertsProblem, platform: Any) -> str | None:
    reason = why_not_activation(problem)
    if reason is None and (problem.gate_up_format is None or problem.down_format is None):
        return "for two products of quantized weights"
    reason = reason or why_not_dtype(problem.dtype, (torch.float32, torch.bfloat16))
    for matrix in problem.matrices.values():
        reason = reason or packed_linear.NATIVE_BACKEND.supports(_linear(matrix), platform)
    return reason or native_unavailable("moe_quantized")


def _pack(problem: ExpertsProblem, weights: Any) -> Mapping[str, torch.Tensor | None]:
    packed: dict[str, torch.Tensor | None] = {}
    for matrix in problem.matrices.values():
        bias = weights[f"{matrix.name}_bias"]
        packed |= _pack_matrix(matrix, weights, problem.num_experts)
        packed[f"{matrix.name}_bias"] = None if bias is None else bias.float().contiguous()
    return packed


def _pack_matrix(matrix: ExpertMatrix, weights: Any, num_experts: int) -> dict[str, torch.Tensor | None]:
    """One expert after the other: packing takes several copies of what it packs."""
    linear, stacked = _linear(matrix), {}
    for expert in range(num_experts):
        parts = packed_linear.NATIVE_BACKEND.layout.pack(linear, {**matrix.of_expert(weights, expert), "bias": None})
        for name in _TENSORS:
            tensor = parts[name]
            if tensor is None:
                stacked[f"{matrix.name}_{name}"] = None
                continue
            if expert == 0:
                stacked[f"{matrix.name}_{name}"] = tensor.new_empty((num_experts, *tensor.shape))
            stacked[f"{matrix.name}_{name}"][expert].copy_(tensor)
    return stacked


def _num_bytes(problem: ExpertsProblem, source_bytes: int) -> int:
    layout = packed_linear.NATIVE_BACKEND.layout
    biases = [4 * matrix.rows * problem.bias for matrix in problem.matrices.values()]
    matrices = [layout.num_bytes(_linear(matrix), 0) for matrix in problem.matrices.values()]
    return problem.num_experts * (sum(matrices) + sum(biases))


def _bind(problem: ExpertsProblem, packed: Any) -> Callable[..., torch.Tensor]:
    library = load_native("moe_quantized", _SIGNATURES)
    matrices = [_structure(matrix, packed) for matrix in problem.matrices.values()]
    biases = [packed[f"{name}_bias"] for name in problem.matrices]
    pointers = [
        *(ctypes.addressof(matrix) for matrix in matrices),
        *(None if bias is None else bias.data_ptr() for bias in biases),
    ]
    function, workspace_bytes = library.moe_experts_f32, library.moe_workspace_bytes
    return bind_experts(problem, function, workspace_bytes, pointers, (packed, matrices), dtype=torch.float32)


def _structure(matrix: ExpertMatrix, packed: Any) -> _Packed:
    linear, tensors = _linear(matrix), [packed[f"{matrix.name}_{name}"] for name in _TENSORS]
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return _Packed(packed_linear.code_kind(linear), *pointers, matrix.columns, packed_linear.group_size(linear))


QUANTIZED_BACKEND = Backend(
    name="native",
    implementation="C, codes decoded into the caches, rows independent",
    supports=_supports,
    bind=_bind,
    layout=Layout("codes by blocks", _pack, _num_bytes),
)
