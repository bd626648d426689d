"""Attention of encoders by Triton: one launch for all texts of a step, and one before it where heads are rotated.

A text's result depends on nothing but itself. Shapes: T tokens, H heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.protocols.kv_cache import DTYPE_BYTES
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launch
from atom_kernels.triton.limits import fitting

if TYPE_CHECKING:
    from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
    from atom_kernels.attention.problem import AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

_DTYPES = ("float32", "bfloat16", "float16")
_MAX_HEAD_DIM = 256
# Texts looked at together in search of a tile's. A constant: Triton would compile for each number of texts.
_TEXTS_AT_ONCE = 256
_LOG2_E = 1.4426950408889634


def supports(problem: EncoderAttentionProblem, platform: Platform) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"computes in {', '.join(_DTYPES)}, not in {problem.dtype}"
    if problem.head_dim > _MAX_HEAD_DIM:
        return f"written for head_dim up to {_MAX_HEAD_DIM}, not {problem.head_dim}"
    return None


@dataclass(frozen=True)
class EncoderConfig:
    """How `encoder_kernel` is launched: queries and keys of a tile. It never depends on the texts of a step."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def encoder_config(problem: EncoderAttentionProblem) -> EncoderConfig:
    if triton_interpret():
        return EncoderConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
    if problem.dtype == "float32" or problem.head_dim > 128:
        # Exact products of wide float32 heads are unrolled, and a larger tile takes minutes to compile.
        wide = problem.dtype == "float32" and problem.head_dim > 128
        config = EncoderConfig(32 if wide else 64, 32, num_warps=4, num_stages=2)
    elif problem.head_dim > 64:
        config = EncoderConfig(128, 64, num_warps=8, num_stages=3)
    else:
        # Most texts are short: a tile of more queries would be filled less.
        config = EncoderConfig(64, 64, num_warps=4, num_stages=3)
    token_bytes = 2 * _block_d(problem) * DTYPE_BYTES[problem.dtype]
    # Weights of a tile pass through local memory on their way to the second product.
    return fitting(config, "block_n", lambda config: config.block_n * (token_bytes + 2 * config.block_m))


def _block_d(problem: EncoderAttentionProblem) -> int:
    return max(16, power_of_two(problem.head_dim))


@dataclass(frozen=True)
class TritonEncoderMetadata:
    """One step: where its texts begin, on the device, and how many texts and tokens it has, on the host."""

    query_start_loc: torch.Tensor
    num_texts: int
    num_tokens: int


class TritonEncoderAttention(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: EncoderAttentionProblem, layout: CacheLayout) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.attention.encoder.triton_kernels import encoder_kernel, encoder_prologue_kernel

        self.problem = problem
        self._config = encoder_config(problem)
        self._kernel, self._prologue_kernel = encoder_kernel, encoder_prologue_kernel

    def build_metadata(self, geometry: BatchGeometry) -> TritonEncoderMetadata:
        step = geometry.dense()
        return TritonEncoderMetadata(step.query_start_loc, step.num_reqs, step.num_tokens)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonEncoderMetadata,
        *,
        weights: None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        rows = (self.problem.head_dim, 1)
        q_THD, k_THD, v_THD = (x if x.stride()[1:] == rows else x.contiguous() for x in inputs)
        out_THD = q_THD.new_empty(q_THD.shape)
        if q_THD.shape[0] > metadata.num_tokens:
            out_THD[metadata.num_tokens :].zero_()
        if not metadata.num_tokens:
            return out_THD
        if prologue is not None:
            q_THD, k_THD = self._apply_prologue(q_THD, k_THD, prologue)
        problem, config = self.problem, self._config
        tiles = metadata.num_tokens // config.block_m + metadata.num_texts
        launch(
            self._kernel, (problem.num_heads, tiles),
            q_THD, k_THD, v_THD, out_THD, metadata.query_start_loc, problem.scale * _LOG2_E,
            q_THD.stride(0), k_THD.stride(0), v_THD.stride(0), metadata.num_texts,
            NUM_HEADS=problem.num_heads,
            HEAD_DIM=problem.head_dim,
            WINDOW=problem.window or 0,
            CAUSAL=problem.causal,
            # The interpreter multiplies float32 matrices only.
            UPCAST=triton_interpret() and problem.dtype != "float32",
            BLOCK_R=_TEXTS_AT_ONCE,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
            BLOCK_D=_block_d(problem),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip
        return out_THD

    def _apply_prologue(
        self, q_THD: torch.Tensor, k_THD: torch.Tensor, prologue: AttentionPrologue
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys as attention uses them, in one launch."""
        problem, table = self.problem, prologue.cos_sin_cache
        q_out, k_out = q_THD.new_empty(q_THD.shape), k_THD.new_empty(k_THD.shape)
        launch(
            self._prologue_kernel, (q_THD.shape[0],),
            q_THD, k_THD, q_out, k_out,
            prologue.positions, table, prologue.q_norm_weight, prologue.k_norm_weight, prologue.norm_eps,
            q_THD.stride(0), k_THD.stride(0),
            NUM_HEADS=problem.num_heads,
            HEAD_DIM=problem.head_dim,
            ROTARY_DIM=0 if table is None else table.shape[1],
            INTERLEAVED=prologue.interleaved,
            BLOCK_H=power_of_two(problem.num_heads),
            BLOCK_D=power_of_two(problem.head_dim),
            num_warps=4,
        )  # fmt: skip
        return q_out, k_out


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=TritonEncoderAttention,
    why_not_strided=reads_any_strides,
    cache_scales=ALL_SCALES,
)
