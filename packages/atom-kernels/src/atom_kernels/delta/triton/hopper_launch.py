"""Launches of `hopper_scan_kernel`, and which problems it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.delta.contract import CHUNK, GatedDeltaProblem
from atom_kernels.platform import detect_platform
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch
from atom_kernels.tuned.store import triton_release

# Gluon is experimental: what it offers is spelled so in these releases.
_RELEASES = ("3.6",)
# Chunks on the way at a time, in shared memory; and registers of the warp that loads.
_STAGES, _LOAD_REGISTERS = 3, 40
# Registers of a multiprocessor, which a program has for itself: its two warpgroups begin with equally many.
_REGISTERS = 65536
# TMA copies from and to addresses that are multiples of this.
_ALIGNMENT = 16


def hopper_serves(problem: GatedDeltaProblem) -> bool:
    """Whether `hopper_scan_kernel` carries states through chunks, and not `scan_chunks_kernel`."""
    if detect_platform().arch != "sm_90" or triton_interpret() or triton_release() not in _RELEASES:
        return False
    return problem.dtype.itemsize == 2 and problem.key_dim in (64, 128) and problem.value_dim % CHUNK == 0


def bind_hopper_scan(problem: GatedDeltaProblem, more_chunks: int) -> Callable[..., None]:
    """What `scan_chunks_kernel` is launched with; see there."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from atom_kernels.delta.triton.hopper_scan import hopper_scan_kernel
    from atom_kernels.triton.support import dependent_launch

    swizzled = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    plain = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    options: dict[str, Any] = {
        "KEY_HEADS": problem.num_key_heads, "HEADS": problem.num_value_heads,
        "KEY_DIM": problem.key_dim, "VALUE_DIM": problem.value_dim,
        "CHANNEL_GATES": problem.channel_gates, "MORE": more_chunks,
        "STAGES": _STAGES, "LOAD_REGISTERS": _LOAD_REGISTERS, "num_warps": 4,
        "maxnreg": _REGISTERS // 256 // 8 * 8 - 8,
    } | dependent_launch()  # fmt: skip

    def describe(x: torch.Tensor) -> Any:
        """Copies of 64 rows and columns: of a step's rows, or of tables of chunks."""
        table = x.flatten(end_dim=-2) if x.dim() > 3 else x.flatten(1)
        return TensorDescriptor(table, list(table.shape), list(table.stride()), [CHUNK, CHUNK], swizzled)

    def run(
        qkv_TC: torch.Tensor,
        out_THV: torch.Tensor,
        states_NHXV: torch.Tensor,
        tables: torch.Tensor,
        squares: torch.Tensor,
        factors: torch.Tensor,
        *indices: torch.Tensor,
    ) -> None:
        if qkv_TC.data_ptr() % _ALIGNMENT:
            qkv_TC = qkv_TC.clone()
        if out_THV.data_ptr() % _ALIGNMENT:
            raise ValueError(f"out must begin at a multiple of {_ALIGNMENT} bytes, not at {out_THV.data_ptr():#x}")
        num_sequences, num_kept = indices[1].shape
        factor_rows = factors.view(-1, CHUNK)
        of_chunk = len(factor_rows) // (len(factors) * problem.num_value_heads)
        launch(
            hopper_scan_kernel, (problem.value_dim // CHUNK, problem.num_value_heads, num_sequences),
            *map(describe, (qkv_TC, out_THV, tables, squares)),
            TensorDescriptor(factor_rows, list(factor_rows.shape), [CHUNK, 1], [of_chunk, CHUNK], plain),
            out_THV, states_NHXV, *indices, len(qkv_TC), num_sequences, num_kept, states_NHXV.stride(0), **options,
        )  # fmt: skip

    return run
