"""Attention of encoders by our own C kernels: one call for all texts of a step, shared out over the threads.

A text's result depends on nothing but itself. Shapes: T tokens, H heads, D head_dim.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.native import load_native, native_unavailable

if TYPE_CHECKING:
    from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
    from atom_kernels.attention.problem import AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

_LIBRARIES = {"float32": "encoder_f32", "bfloat16": "encoder_bf16"}
_SIGNATURE = {"encoder_attention": "pppp" + "lll" + "llllf" + "pl"}
_MAX_HEAD_DIM = 256
# Queries of a task at most, as encoder.h has room for.
_TASK_QUERIES = 96
# No text is so long.
_WHOLE = 2**31


def supports(problem: EncoderAttentionProblem, platform: Platform) -> str | None:
    if problem.head_dim % 2 or problem.head_dim > _MAX_HEAD_DIM:
        return f"written for even head_dim up to {_MAX_HEAD_DIM}, not {problem.head_dim}"
    return why_not_dtype(problem.dtype, list(_LIBRARIES)) or native_unavailable(_LIBRARIES[problem.dtype])


@dataclass(frozen=True)
class NativeEncoderMetadata:
    """One step.

    Attributes:
        tasks: int32 ``[num_tasks, 4]``: rows of the batch where a text begins and ends, and some of its queries do.
        num_tokens: rows that texts have; those behind them become zeros.
    """

    tasks: torch.Tensor
    num_tokens: int


class NativeEncoderAttention(MixerRunner):
    """Calls the C kernel of one dtype."""

    def __init__(self, problem: EncoderAttentionProblem, layout: CacheLayout) -> None:
        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)
        before = problem.window or _WHOLE
        self._reach = (before, 0 if problem.causal else before)
        self._attend = load_native(_LIBRARIES[problem.dtype], _SIGNATURE).encoder_attention

    def build_metadata(self, geometry: BatchGeometry) -> NativeEncoderMetadata:
        starts = geometry.query_start_loc.tolist()[: geometry.num_reqs + 1]
        tasks = [
            (start, end, first, min(first + _TASK_QUERIES, end))
            for start, end in itertools.pairwise(starts)
            for first in range(start, end, _TASK_QUERIES)
        ]
        return NativeEncoderMetadata(torch.tensor(tasks, dtype=torch.int32), starts[-1])

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativeEncoderMetadata,
        *,
        weights: None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        if any(x.dtype is not self._dtype for x in inputs):
            raise TypeError(f"attention was planned for {self._dtype}, got {', '.join(str(x.dtype) for x in inputs)}")
        problem, num_tokens = self.problem, metadata.num_tokens
        q_THD, k_THD = apply_prologue(inputs[0], inputs[1], prologue)
        rows = (problem.head_dim, 1)
        q_THD, k_THD, v_THD = (x if x.stride()[1:] == rows else x.contiguous() for x in (q_THD, k_THD, inputs[2]))
        out_THD = q_THD.new_empty(q_THD.shape)
        out_THD[num_tokens:].zero_()
        self._attend(
            *(x.data_ptr() for x in (q_THD, k_THD, v_THD, out_THD)),
            *(x.stride(0) for x in (q_THD, k_THD, v_THD)),
            problem.num_heads,
            problem.head_dim,
            *self._reach,
            problem.scale,
            metadata.tasks.data_ptr(),
            metadata.tasks.shape[0],
        )
        return out_THD


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=NativeEncoderAttention,
    why_not_strided=reads_any_strides,
    cache_scales=ALL_SCALES,
)
