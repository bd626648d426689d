"""Launches of the gated delta rule by chunks: what a chunk needs of no state, then the states from chunk to chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.delta.contract import CHUNK, GatedDeltaProblem
from atom_kernels.delta.triton.hopper_launch import bind_hopper_scan, hopper_serves
from atom_kernels.platform import detect_platform
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

# A step may have a part of a sequence's first chunk, and a part of its last one: so many more than whole ones.
_MORE_CHUNKS = 2
_LEAST_SIDE = 16
# A program of the scan holds some columns of a state, all of their channels, in registers.
_MAX_KEY_DIM = 128
_MAX_STAGES = 3
# Channels with gates of their own that a program takes at a time. Of 16, Triton 3.6 places operands outside of a
# processor's own memory.
_LEAST_CHANNELS, _MOST_CHANNELS = 32, 64


def computes_chunks(problem: GatedDeltaProblem) -> bool:
    """Whether long pieces of sequences are computed in chunks; else all rows go token by token."""
    return problem.dtype.itemsize == 2 and problem.key_dim <= _MAX_KEY_DIM


@dataclass(frozen=True)
class ScanConfig:
    """How `scan_chunks_kernel` is launched; `block_v` is how many columns of a state a program has."""

    block_v: int
    num_warps: int
    num_stages: int


def scan_config(problem: GatedDeltaProblem) -> ScanConfig:
    """As many stages as fit into a processor's own memory; AMD's keep keys there twice, as they are and transposed."""
    platform = detect_platform()
    block_v = min(64, max(power_of_two(problem.value_dim), _LEAST_SIDE))
    key_dim = max(power_of_two(problem.key_dim), _LEAST_SIDE)
    stage = CHUNK * problem.dtype.itemsize * (3 * key_dim + 2 * CHUNK + block_v)
    # Triton holds the tiles in use in registers on AMD.
    spare = 1 if platform.vendor == "amd" else 0
    num_stages = min(platform.local_memory // stage + spare, _MAX_STAGES)
    return ScanConfig(block_v, num_warps=4, num_stages=max(num_stages, 1))


def bind_chunked(problem: GatedDeltaProblem, a_log_H: torch.Tensor, dt_bias_G: torch.Tensor) -> Callable[..., None]:
    """``(qkv, a, b, out, states, slots, kept_slots, query_start_loc, seq_lens)``.

    Rows of a and b may be apart, see `with_rows`, and slots of states, see `check_slots`; all else is contiguous, and
    indices are int32.
    """
    from atom_kernels.delta.triton.sequences import num_programs

    factor = _bind_factor(problem)
    scan = bind_hopper_scan(problem, _MORE_CHUNKS) if hopper_serves(problem) else _bind_scan(problem)

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
    ) -> None:
        num_rows, num_sequences = len(qkv_TC), len(slots_S)
        num_chunks = num_programs(num_rows, num_sequences, CHUNK, _MORE_CHUNKS)
        made = factor(
            num_chunks, (qkv_TC, a_TG, b_TH),
            slots_S, query_start_loc_S1, seq_lens_S, a_log_H, dt_bias_G, num_rows, num_sequences,
            a_TG.stride(0), b_TH.stride(0), problem.key_dim**-0.5,
        )  # fmt: skip
        scan(qkv_TC, out_THV, states_NHXV, *made, slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S)

    return run


def _options(problem: GatedDeltaProblem) -> dict[str, Any]:
    """Constants that all kernels of chunks have."""
    from atom_kernels.triton.support import dependent_launch

    return {
        "KEY_HEADS": problem.num_key_heads, "HEADS": problem.num_value_heads,
        "KEY_DIM": problem.key_dim, "VALUE_DIM": problem.value_dim,
        "BLOCK_X": max(power_of_two(problem.key_dim), _LEAST_SIDE), "MORE": _MORE_CHUNKS, "PRECISION": "ieee",
    } | dependent_launch()  # fmt: skip


def _bind_factor(problem: GatedDeltaProblem) -> Callable[..., tuple[torch.Tensor, ...]]:
    import triton.language as tl

    from atom_kernels.delta.triton.factor import factor_chunks_kernel
    from atom_kernels.delta.triton.factor_channels import factor_channels_kernel

    options, heads, size = _options(problem), problem.num_value_heads, problem.key_dim
    block = min(max(options["BLOCK_X"], _LEAST_CHANNELS), _MOST_CHANNELS)
    # No number is larger than 1 there: float16 has more of their bits than bfloat16.
    options["HALF"] = tl.float32 if problem.dtype is torch.float32 else tl.float16

    def run(num_chunks: int, rows: tuple[torch.Tensor, ...], *others: Any) -> tuple[torch.Tensor, ...]:
        squares = rows[0].new_empty((num_chunks, heads, 2, CHUNK, CHUNK))
        grid = (heads, num_chunks)
        if problem.channel_gates:
            tables = rows[0].new_empty((num_chunks, heads, 3, CHUNK, size))
            decays = rows[0].new_empty((num_chunks, heads, size), dtype=torch.float32)
            sums = squares.view(torch.float32)
            launch(
                factor_channels_kernel, grid, *rows, tables, squares, sums, decays, *others, **options,
                BLOCK=block, SUMS=sums[0, 0].numel(), num_warps=4, num_stages=1,
            )  # fmt: skip
            return tables, squares, decays
        factors = rows[0].new_empty((num_chunks, heads, 4, CHUNK), dtype=torch.float32)
        launch(factor_chunks_kernel, grid, *rows, squares, factors, *others, **options, num_warps=4)
        # Keys and queries are those of the rows.
        return squares, squares, factors

    return run


def _bind_scan(problem: GatedDeltaProblem) -> Callable[..., None]:
    from atom_kernels.delta.triton.scan import scan_chunks_kernel

    config = scan_config(problem)
    num_blocks = -(-problem.value_dim // config.block_v)
    options = _options(problem) | {
        "CHANNEL_GATES": problem.channel_gates, "BLOCK_V": config.block_v,
        "STAGES": config.num_stages, "num_warps": config.num_warps,
    }  # fmt: skip

    def run(qkv_TC: torch.Tensor, *tensors: torch.Tensor) -> None:
        slot_stride = tensors[1].stride(0)
        num_sequences, num_kept = tensors[-3].shape
        grid = (num_blocks, problem.num_value_heads, num_sequences)
        launch(scan_chunks_kernel, grid, qkv_TC, *tensors, len(qkv_TC), num_sequences, num_kept, slot_stride, **options)

    return run
