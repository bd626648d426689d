"""Latent attention by Triton: absorbed over the cached latents, or expanded for a step that is one whole prompt.

Absorbed, queries are multiplied by the weights that make keys of latents: ordinary attention with one key head, whose
values are the first parts of its keys. Expanded, every head has keys and values of its own, a third as long.

Shapes: T tokens, H heads, N qk_nope_head_dim, E qk_rope_head_dim, D = N + E, V v_head_dim, C kv_lora_rank, L = C + E.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla.absorption import AbsorbedWeights, split_kv_b
from atom_kernels.attention.triton.backend import largest_number, why_not_dtypes
from atom_kernels.attention.triton.configs import expanded_prefill_config, latent_decode_config, latent_prefill_config
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.attention.triton.launch import TritonMetadata
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches

Attend = Callable[[torch.Tensor, torch.Tensor], None]
"""``(queries [T, H, L], found [T, H, C])``: fills the second with what absorbed queries find in the latents."""

_MAX_RANK = 512
# Heads of one program: their sums over latents fill its registers.
_MAX_GROUP = 64
# A block this long holds any prompt.
_ENDLESS = 1 << 30
# The fewest tokens that are worth expanding.
_LEAST_EXPANDED = 64


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    reason = why_not_dtypes(problem.dtype, problem.kv_cache_dtype, platform)
    if reason is None and problem.kv_lora_rank > _MAX_RANK:
        reason = f"written for kv_lora_rank up to {_MAX_RANK}, not {problem.kv_lora_rank}"
    if reason is None and platform.batch_invariant:
        reason = "absorbs queries by cuBLAS, whose order of sums depends on the batch"
    return reason


@dataclass(frozen=True)
class TritonMlaMetadata:
    """One step's, over the cached latents, and for one whole prompt over its expanded keys and values."""

    paged: TritonMetadata
    whole: TritonMetadata | None


@dataclass(frozen=True)
class _Step:
    """The layer's inputs, without padding.

    Attributes:
        scale: cached numbers are multiplied by it: ``[1]``, or ``[num_blocks, block_size]`` for each token; None for 1.
    """

    q: torch.Tensor
    kv: torch.Tensor
    cache: torch.Tensor
    scale: torch.Tensor | None
    metadata: TritonMlaMetadata
    prologue: MlaPrologue | None


class TritonMla(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: MlaProblem) -> None:
        from atom_kernels.attention.mla.triton_products import head_products
        from atom_kernels.attention.mla.triton_prologue import latent_prologue_kernel
        from atom_kernels.attention.triton.launch import PagedKernels, scale_strides
        from atom_kernels.triton.support import dependent_launch

        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)
        self._prologue_kernel, self._dependent_launch = latent_prologue_kernel, dependent_launch
        self._multiply, self._scale_strides = head_products, scale_strides
        group = max(size for size in range(1, _MAX_GROUP + 1) if problem.num_heads % size == 0)
        self.latents = PagedKernels(
            num_heads=problem.num_heads,
            group=group,
            head_dim=problem.kv_lora_rank,
            rope_dim=problem.qk_rope_head_dim,
            latent=True,
            block_size=problem.block_size,
            scale=problem.scale,
            dtype=self._dtype,
            decode=latent_decode_config(problem, group),
            prefill=latent_prefill_config(problem),
        )
        self._pairs = PagedKernels(
            num_heads=problem.num_heads,
            group=1,
            head_dim=problem.v_head_dim,
            rope_dim=problem.qk_rope_head_dim,
            block_size=_ENDLESS,
            scale=problem.scale,
            dtype=self._dtype,
            decode=latent_decode_config(problem, group),
            prefill=expanded_prefill_config(problem),
        )
        self._may_expand = problem.qk_nope_head_dim == problem.v_head_dim

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AbsorbedWeights:
        return replace(split_kv_b(self.problem, weights["kv_b"]), scale=weights.get("latent_scale"))

    def build_metadata(self, geometry: BatchGeometry) -> TritonMlaMetadata:
        paged = self.latents.build_metadata(geometry)
        # Exact on the host only for a request alone, of which all tokens are new.
        alone = geometry.num_reqs == 1 and geometry.num_tokens == geometry.max_query_len == geometry.max_seq_len
        if not (self._may_expand and alone and geometry.num_tokens >= _LEAST_EXPANDED):
            return TritonMlaMetadata(paged, None)
        # Tokens without a slot, of steps that only measure or warm up, may be read from anywhere.
        slots = paged.step.slot_mapping.clamp(min=0)
        table = torch.zeros_like(paged.step.block_table[:, :1])
        return TritonMlaMetadata(paged, replace(paged, step=replace(paged.step, block_table=table, slot_mapping=slots)))

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonMlaMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        if metadata.whole is None:

            def attend(query_THL: torch.Tensor, found_THC: torch.Tensor) -> None:
                self.look(query_THL, found_THC, caches, metadata.paged, weights=weights)

            return self.forward_absorbed(inputs, caches, metadata, weights=weights, prologue=prologue, attend=attend)
        step, out_THV = self._begin(inputs, caches, metadata, weights, prologue=prologue)
        if len(step.q):
            self._expanded(step, metadata.whole, weights, out_THV[: len(step.q)])
        return out_THV

    def forward_absorbed(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonMlaMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
        attend: Attend,
    ) -> torch.Tensor:
        """`forward` where all queries are absorbed, and `attend` looks at the latents."""
        step, out_THV = self._begin(inputs, caches, metadata, weights, prologue=prologue)
        if len(step.q):
            rank, nope = self.problem.kv_lora_rank, self.problem.qk_nope_head_dim
            query_THL = self._write_cache(step, rank)
            self._multiply(step.q[..., :nope], weights.key, query_THL[..., :rank])
            found_THC = query_THL.new_empty((*query_THL.shape[:2], rank))
            attend(query_THL, found_THC)
            self._multiply(found_THC, weights.value.transpose(1, 2), out_THV[: len(step.q)])
        return out_THV

    def look(
        self,
        query_THL: torch.Tensor,
        found_THC: torch.Tensor,
        caches: Caches,
        metadata: TritonMetadata,
        *,
        weights: AbsorbedWeights,
        lse_TH: torch.Tensor | None = None,
    ) -> None:
        """Fill `found_THC` with what absorbed queries find in the latents, and `lse_TH` as `PagedKernels` does."""
        latents, scale = caches[0].unsqueeze(2), scale_of(caches, weights)
        if scale is not None and scale.dim() > 1:
            scale = scale.unsqueeze(2)
        scales = None if scale is None else (scale, scale)
        self.latents.attend(query_THL, latents, latents, found_THC, metadata, scales=scales, lse_TH=lse_TH)

    def place(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonMlaMetadata,
        *,
        weights: AbsorbedWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        """Writes latents to their slots; queries ``[T, H, D]`` with their last part rotated, without padding."""
        step, _ = self._begin(inputs, caches, metadata, weights, prologue=prologue)
        nope = self.problem.qk_nope_head_dim
        query_THD = self._write_cache(step, nope)
        query_THD[..., :nope] = step.q[..., :nope]
        return query_THD

    def _begin(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonMlaMetadata,
        weights: AbsorbedWeights,
        *,
        prologue: MlaPrologue | None,
    ) -> tuple[_Step, torch.Tensor]:
        """The step without padding, and its output, of which padding is zeros."""
        q_THD, kv_TL = inputs
        problem, num_tokens = self.problem, metadata.paged.step.num_tokens
        if not q_THD.dtype is kv_TL.dtype is self._dtype:
            raise TypeError(f"latent attention was planned for {self._dtype}, got {q_THD.dtype} and {kv_TL.dtype}")
        if q_THD.stride()[1:] != (problem.query_dim, 1):
            q_THD = q_THD.contiguous()
        out_THV = q_THD.new_empty((*q_THD.shape[:2], problem.v_head_dim))
        out_THV[num_tokens:].zero_()
        scale = scale_of(caches, weights)
        return _Step(q_THD[:num_tokens], kv_TL[:num_tokens], caches[0], scale, metadata, prologue), out_THV

    def _expanded(self, step: _Step, whole: TritonMetadata, weights: AbsorbedWeights, out_THV: torch.Tensor) -> None:
        problem, nope, query_dim = self.problem, self.problem.qk_nope_head_dim, self.problem.query_dim
        query_THD = self._write_cache(step, nope)
        query_THD[..., :nope] = step.q[..., :nope]
        latent_TL = self._read(step, whole.step.slot_mapping)
        latent_HTC = latent_TL[:, : problem.kv_lora_rank].expand(problem.num_heads, -1, -1)
        # A head's key, and behind it its value.
        pairs = latent_TL.new_empty((1, *out_THV.shape[:2], query_dim + problem.v_head_dim))
        torch.bmm(latent_HTC, weights.key.transpose(1, 2), out=pairs[0, ..., :nope].transpose(0, 1))
        torch.bmm(latent_HTC, weights.value.transpose(1, 2), out=pairs[0, ..., query_dim:].transpose(0, 1))
        pairs[0, ..., nope:query_dim] = latent_TL[:, None, problem.kv_lora_rank :]
        self._pairs.attend(query_THD, pairs[..., :query_dim], pairs[..., query_dim:], out_THV, whole)

    def _read(self, step: _Step, slots_T: torch.Tensor) -> torch.Tensor:
        """Latents with their keys as they are cached, ``[T, L]`` in the layer's dtype."""
        if not self.problem.cache.is_float8:
            return step.cache.flatten(0, 1).index_select(0, slots_T)
        # torch picks rows of bytes, and not of float8.
        codes = step.cache.view(torch.uint8).flatten(0, 1).index_select(0, slots_T).view(step.cache.dtype)
        if step.scale is None:
            return codes.to(self._dtype)
        scale = step.scale if step.scale.dim() == 1 else step.scale.flatten().index_select(0, slots_T).unsqueeze(1)
        return (codes.float() * scale).to(self._dtype)

    def _write_cache(self, step: _Step, width: int) -> torch.Tensor:
        """Latents to their slots; queries ``[T, H, width + E]``, of which only the rotated last part is filled."""
        problem, prologue, q_THD, cache = self.problem, step.prologue, step.q, step.cache
        strides = self._scale_strides(None if step.scale is None else (step.scale, step.scale), cache)
        positions = cos_sin = norm = None
        if prologue is not None:
            positions, cos_sin, norm = prologue.positions, prologue.cos_sin_cache, prologue.norm_weight
        query = q_THD.new_empty((*q_THD.shape[:2], width + problem.qk_rope_head_dim))
        block_e = power_of_two(problem.qk_rope_head_dim)
        block_h = min(power_of_two(problem.num_heads), max(1, 1024 // block_e))
        launch(
            self._prologue_kernel, (q_THD.shape[0], -(-problem.num_heads // block_h) + 1),
            q_THD, step.kv, query, cache, step.scale, step.metadata.paged.step.slot_mapping, positions, cos_sin, norm,
            1e-6 if prologue is None else prologue.norm_eps,
            q_THD.stride(0), step.kv.stride(0), cache.stride(0), cache.stride(1), strides.block, strides.token,
            NUM_HEADS=problem.num_heads,
            RANK=problem.kv_lora_rank,
            NOPE_DIM=problem.qk_nope_head_dim,
            ROPE_DIM=problem.qk_rope_head_dim,
            OUT_DIM=width,
            ROTATE=cos_sin is not None,
            INTERLEAVED=prologue is not None and prologue.interleaved,
            BLOCK_SIZE=problem.block_size,
            SCALES=strides.scales,
            LARGEST=largest_number(problem),
            BLOCK_H=block_h,
            BLOCK_C=power_of_two(problem.kv_lora_rank),
            BLOCK_E=block_e,
            num_warps=4,
            **self._dependent_launch(),
        )  # fmt: skip
        return query


def scale_of(caches: Caches, weights: AbsorbedWeights) -> torch.Tensor | None:
    """That of cached latents, see `_Step`."""
    return caches[1] if len(caches) > 1 else weights.scale


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=lambda problem, layout: TritonMla(problem),
    cache_scales=ALL_SCALES,
)
