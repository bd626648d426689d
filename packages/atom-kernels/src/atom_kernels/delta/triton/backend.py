"""The operators of a delta net through Triton. Grids are made of bounds: nothing of a batch is read on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.delta.arguments import check_rows, check_slots, check_written, packed_indices, with_rows
from atom_kernels.delta.contract import MAX_TOKEN_BY_TOKEN, GatedDeltaProblem, ShortConvProblem, check_kept
from atom_kernels.delta.triton.chunked import bind_chunked, computes_chunks
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.operator import Backend
from atom_kernels.triton.launch import launch

# Rows and channels of a program of the convolution. Its first rows are all that read a state.
_CONV_ROWS, _CONV_CHANNELS = 16, 512
# Rows of later programs that are held side by side: with more, decodes would find fewer registers.
_CONV_TILE = 4
_MAX_WIDTH = _CONV_ROWS
# Columns of a state that a program, of one warp, holds: a quarter of its registers at 128 channels, half at 256. The
# number is the same for every batch, for the order of sums over channels depends on it.
_COLUMNS = 16
_MAX_KEY_DIM = 256


def _supports_conv(problem: ShortConvProblem, platform: Any) -> str | None:
    if problem.width > _MAX_WIDTH:
        return f"width up to {_MAX_WIDTH}, not {problem.width}"
    return why_not_dtype(problem.dtype, FLOATS)


def _bind_conv(problem: ShortConvProblem, weights: Any) -> Callable[..., None]:
    from atom_kernels.delta.triton.conv import short_conv_kernel
    from atom_kernels.delta.triton.sequences import num_programs
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    weight_WC = weights["weight"].T.contiguous()
    channels, width = problem.channels, problem.width
    block = min(_CONV_CHANNELS, power_of_two(channels))
    num_blocks = -(-channels // block)
    options: dict[str, Any] = {
        "CHANNELS": channels, "WIDTH": width, "ROWS": _CONV_ROWS, "TILE": _CONV_TILE, "BLOCK": block,
        "BLOCK_BEFORE": power_of_two(width - 1), "num_warps": 4,
    } | dependent_launch()  # fmt: skip

    def run(
        x_TC: torch.Tensor,
        out_TC: torch.Tensor,
        states_NCP: torch.Tensor,
        slots_S: torch.Tensor,
        kept_slots_SJ: torch.Tensor,
        query_start_loc_S1: torch.Tensor,
        seq_lens_S: torch.Tensor,
    ) -> None:
        check_rows("short_conv", problem.dtype, (x_TC, channels))
        check_written(problem.dtype, out=out_TC)
        slot_stride = check_slots(problem.dtype, states_NCP)
        x_TC, num_rows, (num_sequences, num_kept) = with_rows(x_TC), len(x_TC), kept_slots_SJ.shape
        launch(
            short_conv_kernel, (num_programs(num_rows, num_sequences, _CONV_ROWS, 1), num_blocks),
            x_TC, out_TC, states_NCP, *packed_indices(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S),
            weight_WC, num_rows, num_sequences, num_kept, x_TC.stride(0), slot_stride, **options,
        )  # fmt: skip

    return run


def _supports_delta(problem: GatedDeltaProblem, platform: Any) -> str | None:
    if problem.key_dim > _MAX_KEY_DIM:
        return f"key_dim up to {_MAX_KEY_DIM}, not {problem.key_dim}"
    return why_not_dtype(problem.dtype, FLOATS)


def _bind_delta(problem: GatedDeltaProblem, weights: Any) -> Callable[..., None]:
    from atom_kernels.delta.triton.rule import gated_delta_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    a_log_H, dt_bias_G = weights["a_log"].contiguous(), weights["dt_bias"].contiguous()
    heads, dtype = problem.num_value_heads, problem.dtype
    run_chunks = bind_chunked(problem, a_log_H, dt_bias_G) if computes_chunks(problem) else None
    block = min(_COLUMNS, power_of_two(problem.value_dim))
    num_blocks = -(-problem.value_dim // block)
    options: dict[str, Any] = {
        "KEY_HEADS": problem.num_key_heads, "HEADS": heads,
        "KEY_DIM": problem.key_dim, "VALUE_DIM": problem.value_dim, "CHANNEL_GATES": problem.channel_gates,
        "BLOCK_X": power_of_two(problem.key_dim), "BLOCK_V": block, "HAS_CHUNKS": run_chunks is not None,
        "num_warps": 1,
    } | dependent_launch()  # fmt: skip

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
        check_rows("gated_delta", dtype, (qkv_TC, problem.channels), (a_TG, problem.gates), (b_TH, heads))
        check_kept(kept_slots_SJ)
        check_written(dtype, out=out_THV)
        slot_stride = check_slots(torch.float32, states_NHXV)
        num_sequences, num_kept = kept_slots_SJ.shape
        indices = packed_indices(slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S)
        a_TG, b_TH = with_rows(a_TG), with_rows(b_TH)
        rows = (qkv_TC.contiguous(), a_TG, b_TH, out_THV, states_NHXV)
        strides = (a_TG.stride(0), b_TH.stride(0))
        numbers = (len(qkv_TC), num_sequences, num_kept, *strides, slot_stride, problem.key_dim**-0.5)

        def run_tokens(*, behind_chunks: bool) -> None:
            launch(
                gated_delta_kernel, (num_blocks, heads, 2 + num_sequences), *rows, *indices,
                a_log_H, dt_bias_G, *numbers, BEHIND_CHUNKS=behind_chunks, SEVERAL_ROWS=max_query_len > 1, **options,
            )  # fmt: skip

        run_tokens(behind_chunks=False)
        if run_chunks is not None and max_query_len > MAX_TOKEN_BY_TOKEN:
            run_chunks(*rows, *indices)
            run_tokens(behind_chunks=True)

    return run


CONV_BY_TRITON = Backend(
    name="triton",
    implementation="Triton short_conv, by rows and channels",
    supports=_supports_conv,
    bind=_bind_conv,
)
DELTA_BY_TRITON = Backend(
    name="triton",
    implementation="Triton gated_delta, token by token, long pieces in chunks",
    supports=_supports_delta,
    bind=_bind_delta,
)
