"""Latent attention by our own C kernels: few new tokens absorbed, over the pages as they lie; prompts expanded.

In float32 everything is absorbed, and a row's bits depend on nothing but its own position.

Shapes: T tokens (A absorbed, E expanded ones), H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank,
L latent_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla.native_kernels import MlaKernels, Prologue, unavailable
from atom_kernels.attention.mla.native_steps import (
    EXPANDED_ELEMENTS,
    NativeMlaMetadata,
    Part,
    Round,
    Rows,
    plan_step,
)
from atom_kernels.attention.native_backend import Launch, NativeLayer
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

_MAX_DIM = 1024
# Blocks as long as this make an expanded request one block.
_ENDLESS = 1 << 30


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    reason = unavailable(problem.dtype, problem.kv_cache_dtype)
    if reason is not None:
        return reason
    for name in ("latent_dim", "query_dim"):
        size = getattr(problem, name)
        if size % 2 or size > _MAX_DIM:
            return f"written for even {name} up to {_MAX_DIM}, not {size}"
    return None


@dataclass(frozen=True)
class NativeMlaWeights:
    """For each head.

    Attributes:
        absorb: ``[H, C, N]``: maps a query's unrotated part to the space of latents.
        key, value: ``[H, N, C]`` and ``[H, V, C]`` views: map a latent to its key and value.
        scale: float32 ``[1]``, the one scale of a cache in float8; None if it has none.
    """

    absorb: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: torch.Tensor | None


def absorbed_layer(problem: MlaProblem, block_size: int) -> NativeLayer:
    """Attention of all heads to latents, in blocks of so many tokens."""
    return NativeLayer(
        num_heads=problem.num_heads,
        num_kv_heads=1,
        head_dim=problem.latent_dim,
        value_dim=problem.kv_lora_rank,
        block_size=block_size,
        block_stride=block_size * problem.latent_dim,
        token_stride=problem.latent_dim,
        head_stride=0,
        scale=problem.scale,
    )


class NativeMla(MixerRunner):
    """See the module's docstring. `expanded_elements`: of keys and values that may exist at a time."""

    def __init__(self, problem: MlaProblem, *, expanded_elements: int = EXPANDED_ELEMENTS) -> None:
        self.problem = problem
        self._kernels = MlaKernels(problem)
        self._expanded_elements = expanded_elements
        # An expanded head: its key, rotary part last, and its value.
        self._expanded_dim = problem.query_dim + problem.v_head_dim
        self._absorbed_layer = absorbed_layer(problem, problem.block_size)
        self._expanded_layer = NativeLayer(
            num_heads=problem.num_heads,
            num_kv_heads=problem.num_heads,
            head_dim=problem.query_dim,
            value_dim=problem.v_head_dim,
            block_size=_ENDLESS,
            # A block's id is the first token of a request.
            block_stride=problem.num_heads * self._expanded_dim,
            token_stride=problem.num_heads * self._expanded_dim,
            head_stride=self._expanded_dim,
            scale=problem.scale,
        )

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> NativeMlaWeights:
        problem = self.problem
        weight = weights["kv_b"].contiguous().view(problem.num_heads, -1, problem.kv_lora_rank)
        key, value = weight.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=1)
        return NativeMlaWeights(key.transpose(1, 2).contiguous(), key, value, weights.get("latent_scale"))

    def build_metadata(self, geometry: BatchGeometry) -> NativeMlaMetadata:
        return plan_step(self.problem, geometry, self._expanded_elements)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativeMlaMetadata,
        *,
        weights: NativeMlaWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        step = self.begin(inputs, caches, metadata, weights, prologue)
        self.run(step)
        return step.out

    def begin(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: NativeMlaMetadata,
        weights: NativeMlaWeights,
        prologue: MlaPrologue | None,
    ) -> NativeStep:
        """Writes the cache; what of the output belongs to no request is zeros."""
        q_THD, kv_TL = inputs
        dtype, cache_dtype = self._kernels.dtype, self._kernels.cache_dtype
        if not q_THD.dtype is kv_TL.dtype is dtype or caches[0].dtype is not cache_dtype:
            given = f"{q_THD.dtype}, {kv_TL.dtype} and {caches[0].dtype}"
            raise TypeError(f"latent attention was planned for {dtype} over a cache of {cache_dtype}, got {given}")
        if q_THD.stride()[1:] != (self.problem.query_dim, 1):
            q_THD = q_THD.contiguous()
        first = self._kernels.prologue(prologue)
        self._kernels.write_latents(kv_TL, caches, metadata.slot_mapping, scale=weights.scale, prologue=first)
        out_THV = torch.empty((*q_THD.shape[:2], self.problem.v_head_dim), dtype=dtype)
        out_THV[metadata.num_rows :].zero_()
        return NativeStep(q_THD, weights, caches, metadata, first, out_THV)

    def run(self, step: NativeStep) -> None:
        """The requests that the metadata has."""
        if step.metadata.absorbed is not None:
            self.run_absorbed(step, *step.metadata.absorbed, self._absorbed_layer)
        if step.metadata.expanded is not None:
            self._run_expanded(step, *step.metadata.expanded)

    def run_absorbed(self, step: NativeStep, rows: Rows, launch: Launch, layer: NativeLayer) -> None:
        """Some rows, as the requests of `launch`."""
        problem, kernels = self.problem, self._kernels
        query_AHL = step.take("query", rows.count, problem.num_heads, problem.latent_dim)
        found_AHC = step.take("found", rows.count, problem.num_heads, problem.kv_lora_rank)
        kernels.place_queries(step.q, rows, query_AHL, copied=0, prologue=step.prologue)
        for first, last, at in rows.ranges:
            kernels.multiply(step.q[first:last, :, : problem.qk_nope_head_dim], step.weights.absorb, query_AHL[at:])
        latents = step.caches[0]
        kernels.attend(
            layer,
            launch,
            query_AHL,
            keys=latents,
            values=latents,
            out=found_AHC,
            scale=step.weights.scale,
            token_scales=step.caches[1] if len(step.caches) > 1 else None,
        )
        for first, last, at in rows.ranges:
            kernels.multiply(found_AHC[at : at + last - first], step.weights.value, step.out[first:])

    def _run_expanded(self, step: NativeStep, rows: Rows, rounds: tuple[Round, ...]) -> None:
        problem, kernels = self.problem, self._kernels
        heads = problem.num_heads
        query_EHD = step.take("query", rows.count, heads, problem.query_dim)
        kernels.place_queries(step.q, rows, query_EHD, copied=problem.qk_nope_head_dim, prologue=step.prologue)
        first, last, _ = rows.ranges[0]
        in_place = len(rows.ranges) == 1
        out_EHV = step.out[first:last] if in_place else step.take("out", rows.count, heads, problem.v_head_dim)
        merged = _Merged(out_EHV)
        for turn in rounds:
            expanded = self._expand(step, turn)
            log_sums = step.take("log_sums", rows.count, heads, dtype=torch.float32) if turn.parts else None
            kernels.attend(
                self._expanded_layer,
                turn.launch,
                query_EHD,
                keys=expanded,
                values=expanded[..., problem.query_dim :],
                out=out_EHV,
                log_sums=log_sums,
            )
            if log_sums is not None:
                for part in turn.parts:
                    merged.add(part, log_sums)
        if not in_place:
            for first, last, at in rows.ranges:
                step.out[first:last] = out_EHV[at : at + last - first]

    def _expand(self, step: NativeStep, turn: Round) -> torch.Tensor:
        """Keys and values of all heads ``[tokens, H, D + V]`` from the latents of a round."""
        problem, kernels = self.problem, self._kernels
        latents = kernels.read_latents(step.caches, turn.slots, step.weights.scale)
        expanded = step.take("expanded", latents.shape[0], problem.num_heads, self._expanded_dim)
        shared = latents[:, : problem.kv_lora_rank].unsqueeze(1).expand(-1, problem.num_heads, -1)
        kernels.multiply(shared, step.weights.key, expanded)
        kernels.multiply(shared, step.weights.value, expanded[..., problem.query_dim :])
        kernels.spread_keys(latents[:, problem.kv_lora_rank :], expanded[..., problem.qk_nope_head_dim :])
        return expanded


@dataclass(frozen=True)
class NativeStep:
    """The layer's inputs, and its output."""

    q: torch.Tensor
    weights: NativeMlaWeights
    caches: Caches
    metadata: NativeMlaMetadata
    prologue: Prologue
    out: torch.Tensor

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A buffer of the step's."""
        return self.metadata.scratch.take(name, *shape, dtype=dtype or self.q.dtype)


class _Merged:
    """Results of requests that came in several pieces, weighed by the sums of their exponentials."""

    def __init__(self, out: torch.Tensor) -> None:
        self._out = out
        self._values = torch.empty(0)
        self._log_sums = torch.empty(0)

    def add(self, part: Part, log_sums: torch.Tensor) -> None:
        """Takes in the kernel's result for a piece, in `out`; after the last piece `out` holds the whole result."""
        if not self._values.numel():
            self._values = torch.empty(self._out.shape)
            self._log_sums = torch.empty(self._out.shape[:2])
        rows = part.rows
        if part.is_first:
            self._values[rows], self._log_sums[rows] = self._out[rows].float(), log_sums[rows]
            return
        before = self._log_sums[rows]
        after = torch.logaddexp(before, log_sums[rows])
        self._values[rows] *= torch.exp(before - after).unsqueeze(-1)
        self._values[rows] += self._out[rows].float() * torch.exp(log_sums[rows] - after).unsqueeze(-1)
        self._log_sums[rows] = after
        if part.is_last:
            self._out[part.all_rows] = self._values[part.all_rows].to(self._out.dtype)


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=lambda problem, layout: NativeMla(problem),
    cache_scales=ALL_SCALES,
)
