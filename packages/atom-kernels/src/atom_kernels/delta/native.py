"""The operators of a delta net in C: a convolution by channels, and the delta rule by sequences and heads."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from typing import Any

import torch

from atom_kernels.delta.arguments import check_rows, check_slots, check_written, packed_indices
from atom_kernels.delta.contract import GatedDeltaProblem, ShortConvProblem, check_kept
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_CONV_SIGNATURES = {f"short_conv_{suffix}": "p" * 8 + "l" * 6 for suffix in _SUFFIXES.values()}
_DELTA_SIGNATURES = {f"gated_delta_{suffix}": "p" * 11 + "l" * 9 for suffix in _SUFFIXES.values()}
# What a thread prepares of 64 rows lies on its stack.
_MAX_DIM = 256
_MAX_WIDTH = 16


def _supports_conv(problem: ShortConvProblem, platform: Any) -> str | None:
    if problem.width > _MAX_WIDTH:
        return f"width up to {_MAX_WIDTH}, not {problem.width}"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("short_conv")


def _bind_conv(problem: ShortConvProblem, weights: Any) -> Callable[..., None]:
    function = getattr(load_native("short_conv", _CONV_SIGNATURES), f"short_conv_{_SUFFIXES[problem.dtype]}")
    weight_WC = weights["weight"].float().T.contiguous()
    channels, width = c_int64(problem.channels), c_int64(problem.width)

    def run(
        x_TC: torch.Tensor,
        out_TC: torch.Tensor,
        states_NCP: torch.Tensor,
        slots_S: torch.Tensor,
        kept_slots_SJ: torch.Tensor,
        query_start_loc_S1: torch.Tensor,
        seq_lens_S: torch.Tensor,
    ) -> None:
        check_rows("short_conv", problem.dtype, (x_TC, problem.channels))
        indices = packed_indices(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S)
        x_TC = x_TC.contiguous()
        check_written(problem.dtype, out=out_TC)
        slot_stride = check_slots(problem.dtype, states_NCP)
        function(
            x_TC.data_ptr(), out_TC.data_ptr(), states_NCP.data_ptr(), *(index.data_ptr() for index in indices),
            weight_WC.data_ptr(), x_TC.shape[0], slots_S.shape[0], kept_slots_SJ.shape[1], channels, width, slot_stride,
        )  # fmt: skip

    return run


def _supports_delta(problem: GatedDeltaProblem, platform: Any) -> str | None:
    if problem.key_dim > _MAX_DIM or problem.value_dim > _MAX_DIM:
        return f"key_dim and value_dim up to {_MAX_DIM}, not {problem.key_dim} and {problem.value_dim}"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("gated_delta")


def _bind_delta(problem: GatedDeltaProblem, weights: Any) -> Callable[..., None]:
    function = getattr(load_native("gated_delta", _DELTA_SIGNATURES), f"gated_delta_{_SUFFIXES[problem.dtype]}")
    rates_H, bias_G = weights["a_log"].exp().contiguous(), weights["dt_bias"].contiguous()
    sizes = tuple(
        c_int64(size)
        for size in (
            problem.num_key_heads,
            problem.num_value_heads,
            problem.key_dim,
            problem.value_dim,
            problem.gates // problem.num_value_heads,
        )
    )

    def run(
        qkv_TC: torch.Tensor,
        a_TG: torch.Tensor,
        b_TH: torch.Tensor,
        out_THV: torch.Tensor,
        states_NHXV: torch.Tensor,
        slots_S: torch.Tensor,
        kept_slots_SJ: torch.Tensor,
        query_start_loc_S1: torch.Tensor,
        seq_lens_S: torch.Tensor,
        max_query_len: int,
    ) -> None:
        rows = ((qkv_TC, problem.channels), (a_TG, problem.gates), (b_TH, problem.num_value_heads))
        check_rows("gated_delta", problem.dtype, *rows)
        check_kept(kept_slots_SJ)
        indices = packed_indices(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S)
        inputs = [x.contiguous() for x, _ in rows]
        check_written(problem.dtype, out=out_THV)
        slot_stride = check_slots(torch.float32, states_NHXV)
        function(
            *(x.data_ptr() for x in (*inputs, out_THV, states_NHXV, *indices, rates_H, bias_G)),
            qkv_TC.shape[0], slots_S.shape[0], kept_slots_SJ.shape[1], *sizes, slot_stride,
        )  # fmt: skip

    return run


CONV_BACKEND = Backend(
    name="native", implementation="C short_conv, by channels", supports=_supports_conv, bind=_bind_conv
)
DELTA_BACKEND = Backend(
    name="native", implementation="C gated_delta, token by token", supports=_supports_delta, bind=_bind_delta
)
