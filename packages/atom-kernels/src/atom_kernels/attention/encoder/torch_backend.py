"""Attention of encoders by torch's own kernel, on CPUs and GPUs: one call for each text, so that nothing is padded.

A text's result depends on nothing but itself. With a window the text is cut into runs of queries, each of which reads
the keys that some of them see: the work grows with the text's length, not with its square.

Shapes: T tokens, H heads, D head_dim, Q queries of a run, L keys that it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
    from atom_kernels.attention.problem import AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

# Queries that share a slice of keys where there is a window.
RUN = 256
_DTYPES = ("float32", "bfloat16", "float16")


def supports(problem: EncoderAttentionProblem, platform: Platform) -> str | None:
    return None if problem.dtype in _DTYPES else f"computes in {', '.join(_DTYPES)}, not in {problem.dtype}"


@dataclass(frozen=True)
class Run:
    """Rows of queries and of the keys that they see; `mask` is bool ``[Q, L]``, None where each sees all."""

    queries: slice
    keys: slice
    mask: torch.Tensor | None = None


class TorchEncoderAttention(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: EncoderAttentionProblem, layout: CacheLayout) -> None:
        self.problem = problem

    def build_metadata(self, geometry: BatchGeometry) -> tuple[Run, ...]:
        starts = geometry.query_start_loc.tolist()[: geometry.num_reqs + 1]
        device = geometry.query_start_loc.device
        return tuple(run for text in itertools.pairwise(starts) for run in self._runs(*text, device))

    def _runs(self, first: int, last: int, device: torch.device) -> Iterator[Run]:
        window, is_causal = self.problem.window or last - first, self.problem.causal
        if last - first <= window + 1 and not is_causal:
            if last > first:
                yield Run(slice(first, last), slice(first, last))
            return
        for start in range(first, last, RUN):
            queries = slice(start, min(start + RUN, last))
            keys = slice(max(start - window, first), queries.stop if is_causal else min(queries.stop + window, last))
            q_Q, k_L = (torch.arange(rows.start, rows.stop, device=device) for rows in (queries, keys))
            ahead_QL = q_Q.unsqueeze(1) - k_L
            yield Run(queries, keys, (ahead_QL <= window) & (ahead_QL >= (0 if is_causal else -window)))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: tuple[Run, ...],
        *,
        weights: None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_THD = apply_prologue(inputs[0], inputs[1], prologue)
        q_HTD, k_HTD, v_HTD = (x.transpose(0, 1) for x in (q_THD, k_THD, inputs[2]))
        out_THD = torch.zeros_like(q_THD, memory_format=torch.contiguous_format)
        for run in metadata:
            out_1HQD = scaled_dot_product_attention(
                q_HTD[None, :, run.queries],
                k_HTD[None, :, run.keys],
                v_HTD[None, :, run.keys],
                attn_mask=run.mask,
                scale=self.problem.scale,
            )
            out_THD[run.queries] = out_1HQD[0].transpose(0, 1)
        return out_THD


BACKEND = MixerBackend(
    name="torch",
    supports=supports,
    create=TorchEncoderAttention,
    why_not_strided=reads_any_strides,
    cache_scales=ALL_SCALES,
)
