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


def computes_chunks(problem: GatedDeltaProblem) -> bool:
    """Whether long pieces of sequences are computed in chunks; else all rows go token by token."""
    return problem.dtype.itemsize == 2 and problem.key_dim <= _MAX_KEY_DIM and not problem.channel_gates


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

    Rows of a and b may be apart, see `with_rows`; all else is contiguous, and indices are int32.
    """
    import triton.language as tl

    from atom_kernels.delta.triton.factor import factor_chunks_kernel
    from atom_kernels.delta.triton.sequences import num_programs
    from atom_kernels.triton.support import dependent_launch

    heads = problem.num_value_heads
    scan = bind_hopper_scan(problem, _MORE_CHUNKS) if hopper_serves(problem) else _bind_scan(problem)
    options: dict[str, Any] = {
        "KEY_HEADS": problem.num_key_heads, "HEADS": heads, "KEY_DIM": problem.key_dim, "VALUE_DIM": problem.value_dim,
        "BLOCK_X": max(power_of_two(problem.key_dim), _LEAST_SIDE), "MORE": _MORE_CHUNKS, "PRECISION": "ieee",
        "INVERSE_DTYPE": tl.float32 if problem.dtype is torch.float32 else tl.float16, "num_warps": 4,
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
    ) -> None:
        num_rows, num_sequences = len(qkv_TC), len(slots_S)
        num_chunks = num_programs(num_rows, num_sequences, CHUNK, _MORE_CHUNKS)
        inverses, scores = (qkv_TC.new_empty((num_chunks, heads, CHUNK, CHUNK)) for _ in range(2))
        factors = a_log_H.new_empty((num_chunks, heads, 4, CHUNK))
        launch(
            factor_chunks_kernel, (heads, num_chunks), qkv_TC, a_TG, b_TH, inverses, scores, factors,
            slots_S, query_start_loc_S1, seq_lens_S, a_log_H, dt_bias_G, num_rows, num_sequences,
            a_TG.stride(0), b_TH.stride(0), problem.key_dim**-0.5, **options,
        )  # fmt: skip
        made, indices = (inverses, scores, factors), (slots_S, kept_slots_SJ, query_start_loc_S1, seq_lens_S)
        scan(qkv_TC, out_THV, states_NHXV, *made, *indices)

    return run


def _bind_scan(problem: GatedDeltaProblem) -> Callable[..., None]:
    from atom_kernels.delta.triton.scan import scan_chunks_kernel
    from atom_kernels.triton.support import dependent_launch

    config = scan_config(problem)
    num_blocks = -(-problem.value_dim // config.block_v)
    options: dict[str, Any] = {
        "KEY_HEADS": problem.num_key_heads, "HEADS": problem.num_value_heads,
        "KEY_DIM": problem.key_dim, "VALUE_DIM": problem.value_dim,
        "BLOCK_X": max(power_of_two(problem.key_dim), _LEAST_SIDE), "BLOCK_V": config.block_v, "MORE": _MORE_CHUNKS,
        "STAGES": config.num_stages, "PRECISION": "ieee", "num_warps": config.num_warps,
    } | dependent_launch()  # fmt: skip

    def run(qkv_TC: torch.Tensor, *tensors: torch.Tensor) -> None:
        num_sequences, num_kept = tensors[-3].shape
        grid = (num_blocks, problem.num_value_heads, num_sequences)
        launch(scan_chunks_kernel, grid, qkv_TC, *tensors, len(qkv_TC), num_sequences, num_kept, **options)

    return run
