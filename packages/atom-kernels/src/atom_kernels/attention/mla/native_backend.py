"""Latent attention by our own C kernels: few new tokens absorbed, over the pages as they lie; prompts expanded.

In float32 everything is absorbed, and a row's bits depend on nothing but its own position.

Shapes: T tokens (A absorbed, E expanded ones), H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank,
L latent_dim.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.mla.native_steps import NativeMlaMetadata, Part, Rows, plan_step
from atom_kernels.attention.native_backend import LIBRARIES, SIGNATURE, NativeLayer
from atom_kernels.native import load_native, native_unavailable

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry

NAME = "native"
_MAX_LATENT_DIM = 1024
_SUFFIXES = {"float32": "f32", "bfloat16": "bf16"}
_SIGNATURES = {
    "head_products": "ppp" + "l" * 9,
    "write_latents": "pppppp" + "l" * 5 + "f",
    "place_queries": "pppp" + "l" * 8,
    "spread_keys": "pp" + "l" * 5,
}
# Blocks as long as this make an expanded request one block.
_ENDLESS = 1 << 30


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    if problem.dtype not in _SUFFIXES:
        return f"written for {' and '.join(_SUFFIXES)}, not for {problem.dtype}"
    if problem.cache_dtype != problem.dtype:
        return f"reads the cache in place, so its dtype must be {problem.dtype}, not {problem.cache_dtype}"
    if max(problem.latent_dim, problem.query_dim) > _MAX_LATENT_DIM:
        return f"written for latents and queries of up to {_MAX_LATENT_DIM} elements"
    if problem.latent_dim % 2 or problem.query_dim % 2:
        return "written for latents and queries of an even number of elements"
    reason = native_unavailable(LIBRARIES[problem.dtype]) or native_unavailable("mla")
    if reason is None and problem.dtype == "bfloat16":
        has_bf16 = load_native("mla", {"has_mla_bf16": "->l"}).has_mla_bf16()
        return None if has_bf16 else "written for CPUs with avx512_bf16"
    return reason


@dataclass(frozen=True)
class NativeMlaWeights:
    """For each head.

    Attributes:
        absorb: ``[H, C, N]``: a query's unrotated part to what it looks for in latents.
        key, value: ``[H, N, C]`` and ``[H, V, C]`` views: a latent to its key and value.
    """

    absorb: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class NativeMla:
    """See the module's docstring."""

    def __init__(self, problem: MlaProblem) -> None:
        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)
        suffix = _SUFFIXES[problem.dtype]
        library = load_native("mla", {f"{name}_{suffix}": letters for name, letters in _SIGNATURES.items()})
        self._head_products = getattr(library, f"head_products_{suffix}")
        self._write_latents = getattr(library, f"write_latents_{suffix}")
        self._place_queries = getattr(library, f"place_queries_{suffix}")
        self._spread_keys = getattr(library, f"spread_keys_{suffix}")
        self._attention = load_native(LIBRARIES[problem.dtype], SIGNATURE).attention
        self._expanded_dim = problem.query_dim + problem.v_head_dim
        expanded_row = problem.num_heads * self._expanded_dim
        self._absorbed_layer = NativeLayer(
            num_heads=problem.num_heads,
            num_kv_heads=1,
            head_dim=problem.latent_dim,
            value_dim=problem.kv_lora_rank,
            block_size=problem.block_size,
            block_stride=problem.block_size * problem.latent_dim,
            token_stride=problem.latent_dim,
            head_stride=0,
            scale=problem.scale,
        )
        self._expanded_layer = NativeLayer(
            num_heads=problem.num_heads,
            num_kv_heads=problem.num_heads,
            head_dim=problem.query_dim,
            value_dim=problem.v_head_dim,
            block_size=_ENDLESS,
            block_stride=expanded_row,
            token_stride=expanded_row,
            head_stride=self._expanded_dim,
            scale=problem.scale,
        )

    def prepare(self, kv_b_weight: torch.Tensor) -> NativeMlaWeights:
        problem = self.problem
        weight = kv_b_weight.contiguous().view(problem.num_heads, -1, problem.kv_lora_rank)
        key, value = weight.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=1)
        return NativeMlaWeights(key.transpose(1, 2).contiguous(), key, value)

    def build_metadata(self, geometry: BatchGeometry) -> NativeMlaMetadata:
        return plan_step(self.problem, geometry)

    def forward(
        self,
        q_THD: torch.Tensor,
        kv_TC: torch.Tensor,
        weights: NativeMlaWeights,
        kv_cache: tuple[torch.Tensor, ...],
        metadata: NativeMlaMetadata,
        *,
        prologue: MlaPrologue | None = None,
    ) -> torch.Tensor:
        (cache,) = kv_cache
        if not q_THD.dtype is kv_TC.dtype is cache.dtype is self._dtype:
            given = f"{q_THD.dtype}, {kv_TC.dtype} and {cache.dtype}"
            raise TypeError(f"latent attention was planned for {self._dtype}, got {given}")
        if q_THD.stride()[1:] != (self.problem.query_dim, 1):
            q_THD = q_THD.contiguous()
        if kv_TC.stride(1) != 1:
            kv_TC = kv_TC.contiguous()
        turning = self._turning(prologue)
        self._write(kv_TC, cache, metadata, turning, prologue)
        out_THV = torch.empty((*q_THD.shape[:2], self.problem.v_head_dim), dtype=self._dtype)
        out_THV[metadata.num_rows :].zero_()
        if metadata.absorbed is not None:
            self._run_absorbed(q_THD, weights, cache, metadata, turning, out_THV)
        if metadata.expanded is not None:
            self._run_expanded(q_THD, weights, cache, metadata, turning, out_THV)
        return out_THV

    def _write(
        self,
        kv_TC: torch.Tensor,
        cache: torch.Tensor,
        metadata: NativeMlaMetadata,
        turning: _Turning,
        prologue: MlaPrologue | None,
    ) -> None:
        norm = None if prologue is None else prologue.norm_weight
        if norm is not None and (norm.dtype is not self._dtype or not norm.is_contiguous()):
            raise TypeError(f"the norm's weight must be contiguous {self._dtype} like the latents, got {norm.dtype}")
        self._write_latents(
            kv_TC.data_ptr(),
            None if norm is None else norm.data_ptr(),
            turning.positions,
            turning.cos_sin,
            metadata.slot_mapping.data_ptr(),
            cache.data_ptr(),
            metadata.num_tokens,
            kv_TC.stride(0),
            self.problem.kv_lora_rank,
            self.problem.qk_rope_head_dim,
            turning.interleaved,
            1e-6 if prologue is None else prologue.norm_eps,
        )

    def _run_absorbed(
        self,
        q_THD: torch.Tensor,
        weights: NativeMlaWeights,
        cache: torch.Tensor,
        metadata: NativeMlaMetadata,
        turning: _Turning,
        out_THV: torch.Tensor,
    ) -> None:
        problem, scratch = self.problem, metadata.scratch
        rows, launch = metadata.absorbed  # type: ignore[misc]
        query_AHL = scratch.take("query", rows.count, problem.num_heads, problem.latent_dim, dtype=self._dtype)
        found_AHC = scratch.take("found", rows.count, problem.num_heads, problem.kv_lora_rank, dtype=self._dtype)
        self._place(q_THD, rows, query_AHL, turning, copied=0)
        for first, last, at in rows.ranges:
            self._multiply(q_THD[first:last, :, : problem.qk_nope_head_dim], weights.absorb, query_AHL[at:])
        self._attend(self._absorbed_layer, launch.address, query_AHL, cache, cache, found_AHC)
        for first, last, at in rows.ranges:
            self._multiply(found_AHC[at : at + last - first], weights.value, out_THV[first:])

    def _run_expanded(
        self,
        q_THD: torch.Tensor,
        weights: NativeMlaWeights,
        cache: torch.Tensor,
        metadata: NativeMlaMetadata,
        turning: _Turning,
        out_THV: torch.Tensor,
    ) -> None:
        problem, scratch = self.problem, metadata.scratch
        rows, rounds = metadata.expanded  # type: ignore[misc]
        heads, nope, query_dim = problem.num_heads, problem.qk_nope_head_dim, problem.query_dim
        query_EHD = scratch.take("query", rows.count, heads, query_dim, dtype=self._dtype)
        self._place(q_THD, rows, query_EHD, turning, copied=nope)
        first, last, _ = rows.ranges[0]
        in_place = len(rows.ranges) == 1
        out = (
            out_THV[first:last]
            if in_place
            else scratch.take("out", rows.count, heads, problem.v_head_dim, dtype=self._dtype)
        )
        merged = _Merged(out)
        latents_SL = cache.view(-1, problem.latent_dim)
        for turn in rounds:
            latents = latents_SL.index_select(0, turn.slots)
            expanded = scratch.take("expanded", latents.shape[0], heads, self._expanded_dim, dtype=self._dtype)
            shared = latents[:, : problem.kv_lora_rank].unsqueeze(1).expand(-1, heads, -1)
            self._multiply(shared, weights.key, expanded)
            self._multiply(shared, weights.value, expanded[..., query_dim:])
            self._spread_keys(
                latents.data_ptr() + problem.kv_lora_rank * latents.itemsize,
                expanded.data_ptr() + nope * expanded.itemsize,
                latents.shape[0],
                heads,
                problem.latent_dim,
                problem.qk_rope_head_dim,
                self._expanded_dim,
            )
            log_sums = scratch.take("log_sums", rows.count, heads, dtype=torch.float32) if turn.parts else None
            values = expanded[..., query_dim:]
            self._attend(self._expanded_layer, turn.launch.address, query_EHD, expanded, values, out, log_sums)
            if log_sums is not None:
                for part in turn.parts:
                    merged.add(part, log_sums)
        if not in_place:
            for first, last, at in rows.ranges:
                out_THV[first:last] = out[at : at + last - first]

    def _place(self, q_THD: torch.Tensor, rows: Rows, out: torch.Tensor, turning: _Turning, *, copied: int) -> None:
        for first, last, at in rows.ranges:
            self._place_queries(
                q_THD[first:].data_ptr(),
                None if turning.positions is None else turning.positions + first * 8,
                turning.cos_sin,
                out[at:].data_ptr(),
                last - first,
                self.problem.num_heads,
                q_THD.stride(0),
                self.problem.qk_nope_head_dim,
                self.problem.qk_rope_head_dim,
                copied,
                out.shape[2],
                turning.interleaved,
            )

    def _multiply(self, x_THK: torch.Tensor, weight_HNK: torch.Tensor, out: torch.Tensor) -> None:
        """``weight[h] @ x[t, h]`` into the leading elements of each head of `out`."""
        rows, heads, k_size = x_THK.shape
        self._head_products(
            x_THK.data_ptr(),
            weight_HNK.data_ptr(),
            out.data_ptr(),
            rows,
            heads,
            k_size,
            weight_HNK.shape[1],
            x_THK.stride(0),
            x_THK.stride(1),
            weight_HNK.stride(0),
            out.stride(0),
            out.stride(1),
        )

    def _attend(
        self,
        layer: NativeLayer,
        batch_address: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        log_sums: torch.Tensor | None = None,
    ) -> None:
        self._attention(
            ctypes.addressof(layer),
            batch_address,
            query.data_ptr(),
            None,
            None,
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            None,
            None if log_sums is None else log_sums.data_ptr(),
            query.stride(0),
            0,
            0,
            0,
            *(None, None, None, None),
            0,
            0,
            0.0,
        )

    def _turning(self, prologue: MlaPrologue | None) -> _Turning:
        if prologue is None or prologue.cos_sin_cache is None:
            return _Turning(None, None, 0)
        positions, cos_sin, rope = prologue.positions, prologue.cos_sin_cache, self.problem.qk_rope_head_dim
        # The kernel takes pointers at their word, and a wrong dtype would be read as garbage.
        if positions.dtype is not torch.int64 or positions.dim() != 1 or not positions.is_contiguous():
            raise TypeError(f"positions must be contiguous int64 [T], got {positions.dtype} {list(positions.shape)}")
        if cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous() or cos_sin.shape[1] != rope:
            raise TypeError(
                f"cos_sin_cache must be contiguous float32 [P, {rope}], got {cos_sin.dtype} {list(cos_sin.shape)}"
            )
        return _Turning(positions.data_ptr(), cos_sin.data_ptr(), int(prologue.interleaved))


@dataclass(frozen=True)
class _Turning:
    """Rotation as the kernels take it: pointers, None for no rotation."""

    positions: int | None
    cos_sin: int | None
    interleaved: int


class _Merged:
    """Results of requests that came in several pieces, weighed by the sums of their exponentials."""

    def __init__(self, out: torch.Tensor) -> None:
        self._out = out
        self._values = torch.empty(0)
        self._log_sums = torch.empty(0)

    def add(self, part: Part, log_sums: torch.Tensor) -> None:
        """Takes in what the kernel left of a piece in `out`; after the last piece `out` holds the whole result."""
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


create = NativeMla
