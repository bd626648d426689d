"""The lightning index by our own C kernels: scores of VL keys side by side in float32, and the choice.

A row's bits depend on nothing but its own position. Shapes: T tokens, H index heads, D head_dim, K top_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.index.reference import rotate_index
from atom_kernels.attention.index.rows import RowsOfRequests, rows_on_host
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.native import load_native, native_unavailable

if TYPE_CHECKING:
    from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

_SUFFIXES = {"float32": "f32", "bfloat16": "bf16"}
_SIGNATURES = {f"lightning_index_{suffix}": "p" * 7 + "l" * 7 + "f->l" for suffix in _SUFFIXES.values()}
# What a thread has of a tile, and of a row's queries, lies on its stack.
_MAX_DIM = 256
_MAX_QUERIES = 1 << 16


def supports(problem: IndexProblem, platform: Platform) -> str | None:
    if problem.head_dim > _MAX_DIM or problem.num_heads * problem.head_dim > _MAX_QUERIES:
        sizes = f"{problem.num_heads} heads of {problem.head_dim}"
        return f"written for head_dim up to {_MAX_DIM} and {_MAX_QUERIES} elements of a row, not {sizes}"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("index")


@dataclass(frozen=True)
class NativeIndexMetadata:
    """One step, dense, and its rows."""

    step: BatchGeometry
    rows: RowsOfRequests


class NativeIndex(MixerRunner):
    """See the module's docstring."""

    def __init__(self, problem: IndexProblem) -> None:
        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)
        library = load_native("index", _SIGNATURES)
        self._choose = getattr(library, f"lightning_index_{_SUFFIXES[problem.dtype]}")

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> None:
        return None

    def build_metadata(self, geometry: BatchGeometry) -> NativeIndexMetadata:
        step = geometry.dense()
        return NativeIndexMetadata(step, rows_on_host(step))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativeIndexMetadata,
        *,
        weights: Any,
        prologue: IndexPrologue | None,
    ) -> torch.Tensor:
        for x in (*inputs, *caches):
            if x.dtype is not self._dtype:
                raise TypeError(f"a lightning index was planned for {self._dtype}, got {x.dtype}")
        q_THD, k_TD, head_weights_TH = inputs
        problem, (cache,), step = self.problem, caches, metadata.step
        q_THD, k_TD = rotate_index(q_THD, k_TD, prologue)
        write_cache(caches, (k_TD[: step.num_tokens],), step.slot_mapping)
        q_THD = q_THD.contiguous()
        if head_weights_TH.stride(1) != 1:
            head_weights_TH = head_weights_TH.contiguous()
        chosen_TK = torch.empty((len(q_THD), problem.top_k), dtype=torch.int32)
        count = len(metadata.rows.requests)
        chosen_TK[count:].fill_(-1)
        failed = self._choose(
            q_THD.data_ptr(),
            head_weights_TH.data_ptr(),
            cache.data_ptr(),
            step.block_table.data_ptr(),
            metadata.rows.requests.data_ptr(),
            metadata.rows.visible.data_ptr(),
            chosen_TK.data_ptr(),
            count,
            head_weights_TH.stride(0),
            step.block_table.stride(0),
            problem.num_heads,
            problem.head_dim,
            problem.top_k,
            problem.block_size,
            problem.scale,
        )
        if failed:
            raise MemoryError("no memory for the scores of a lightning index")
        return chosen_TK


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=lambda problem, layout: NativeIndex(problem),
    cache_scales=ALL_SCALES,
)
