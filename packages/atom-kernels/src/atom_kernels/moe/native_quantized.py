"""Experts in C over packed codes: panels of them are decoded into the caches, and multiplied as float32."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from atom_kernels.dtypes import why_not_dtype
from atom_kernels.linear import native_quantized as packed_linear
from atom_kernels.moe.contract import ExpertMatrix, ExpertsProblem
from atom_kernels.moe.native import bind_experts, why_not_activation
from atom_kernels.moe.packing import linear_of, pack_experts, packed_bytes
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend, WeightLayout

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


def _supports(problem: ExpertsProblem, platform: Any) -> str | None:
    reason = why_not_activation(problem)
    reason = reason or why_not_dtype(problem.dtype, (torch.float32, torch.bfloat16))
    for matrix in problem.matrices.values():
        reason = reason or packed_linear.NATIVE_BACKEND.supports(linear_of(matrix, torch.float32), platform)
    return reason or native_unavailable("moe_quantized")


def _pack(problem: ExpertsProblem, weights: Any) -> Mapping[str, torch.Tensor | None]:
    return pack_experts(problem, weights, packed_linear.NATIVE_BACKEND.layout, torch.float32)


def _num_bytes(problem: ExpertsProblem, source_bytes: int) -> int:
    return packed_bytes(problem, packed_linear.NATIVE_BACKEND.layout, torch.float32)


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
    linear, tensors = linear_of(matrix, torch.float32), [packed[f"{matrix.name}_{name}"] for name in _TENSORS]
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return _Packed(packed_linear.code_kind(linear), *pointers, matrix.columns, packed_linear.group_size(linear))


QUANTIZED_BACKEND = Backend(
    name="native",
    implementation="C, codes decoded into the caches, rows independent",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("codes by blocks", _pack, _num_bytes),
)
