"""The C functions of latent attention as tensors go in and out: pointers, strides and what is checked first.

Shapes: T tokens, H heads, D query_dim, K and N inputs and outputs of a product, C kv_lora_rank, L latent_dim.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention import native_functions as paged
from atom_kernels.attention.native_backend import Launch, NativeLayer
from atom_kernels.native import load_native, native_unavailable

if TYPE_CHECKING:
    from atom_kernels.attention.mla.native_steps import Rows
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.protocols import Caches

_SUFFIXES = {"float32": "f32", "bfloat16": "bf16"}
_SIGNATURES = {
    "head_products": "ppp" + "l" * 9,
    "write_latents": "pppppppp" + "l" * 6 + "f",
    "read_latents": "ppppp" + "ll",
    "place_queries": "pppp" + "l" * 8,
    "spread_keys": "pp" + "l" * 5,
}


def unavailable(dtype: str, kv_cache_dtype: str) -> str | None:
    """None if the kernels of such numbers run on this machine, else the reason."""
    # Expanded keys and values are in the dtype itself, whatever is cached.
    reasons = (paged.unavailable(dtype, kv_cache_dtype), paged.unavailable(dtype, dtype), native_unavailable("mla"))
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None and dtype == "bfloat16" and not load_native("mla", {"has_mla_bf16": "->l"}).has_mla_bf16():
        return "written for CPUs with avx512_bf16"
    return reason


@dataclass(frozen=True)
class Prologue:
    """Norm and rotation as the kernels take them: pointers, None for none. The tensors must outlive it."""

    norm: int | None = None
    norm_eps: float = 1e-6
    positions: int | None = None
    cos_sin: int | None = None
    interleaved: int = 0


class MlaKernels:
    """The functions for one problem."""

    def __init__(self, problem: MlaProblem) -> None:
        self._problem = problem
        self.dtype = getattr(torch, problem.dtype)
        suffix = _SUFFIXES[problem.dtype]
        library = load_native("mla", {f"{name}_{suffix}": letters for name, letters in _SIGNATURES.items()})
        self._head_products = getattr(library, f"head_products_{suffix}")
        self._write_latents = getattr(library, f"write_latents_{suffix}")
        self._place_queries = getattr(library, f"place_queries_{suffix}")
        self._spread_keys = getattr(library, f"spread_keys_{suffix}")
        self._read_latents = getattr(library, f"read_latents_{suffix}")
        self.cache_dtype = getattr(torch, problem.kv_cache_dtype)
        self._is_narrow = self.cache_dtype is not self.dtype
        absorbed, expanded = (problem.latent_dim, problem.kv_lora_rank), (problem.query_dim, problem.v_head_dim)
        self._attention = {
            (getattr(torch, keys), *channels): paged.attention_function(problem.dtype, keys, *channels)
            for keys in (problem.dtype, problem.kv_cache_dtype)
            for channels in (absorbed, expanded)
        }

    def prologue(self, prologue: MlaPrologue | None) -> Prologue:
        """Checks everything: the kernels only see pointers, and would read a wrong dtype as garbage."""
        if prologue is None:
            return Prologue()
        norm, positions, cos_sin = prologue.norm_weight, prologue.positions, prologue.cos_sin_cache
        if norm is not None and (norm.dtype is not self.dtype or not norm.is_contiguous()):
            raise TypeError(f"the norm's weight must be contiguous {self.dtype} like the latents, got {norm.dtype}")
        if positions.dtype is not torch.int64 or positions.dim() != 1 or not positions.is_contiguous():
            raise TypeError(f"positions must be contiguous int64 [T], got {positions.dtype} {list(positions.shape)}")
        rope = self._problem.qk_rope_head_dim
        if cos_sin is not None and (
            cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous() or cos_sin.shape[1] != rope
        ):
            given = f"{cos_sin.dtype} {list(cos_sin.shape)}"
            raise TypeError(f"cos_sin_cache must be contiguous float32 [P, {rope}], got {given}")
        return Prologue(
            None if norm is None else norm.data_ptr(),
            prologue.norm_eps,
            positions.data_ptr(),
            None if cos_sin is None else cos_sin.data_ptr(),
            int(prologue.interleaved),
        )

    def write_latents(
        self,
        kv_TL: torch.Tensor,
        caches: Caches,
        slot_mapping: torch.Tensor,
        *,
        scale: torch.Tensor | None,
        prologue: Prologue,
    ) -> None:
        """Norms and rotates latents and writes each to its slot."""
        if kv_TL.stride(1) != 1:
            kv_TL = kv_TL.contiguous()
        self._write_latents(
            kv_TL.data_ptr(),
            prologue.norm,
            prologue.positions,
            prologue.cos_sin,
            slot_mapping.data_ptr(),
            caches[0].data_ptr(),
            *_scales(scale, caches),
            self._is_narrow,
            slot_mapping.shape[0],
            kv_TL.stride(0),
            self._problem.kv_lora_rank,
            self._problem.qk_rope_head_dim,
            prologue.interleaved,
            prologue.norm_eps,
        )

    def read_latents(self, caches: Caches, slots: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """``[slots, latent_dim]`` in the problem's dtype: what the cache holds there, times its scales."""
        cache = caches[0].view(-1, self._problem.latent_dim)
        if not self._is_narrow:
            return cache.index_select(0, slots)
        latents = torch.empty((len(slots), cache.shape[1]), dtype=self.dtype)
        self._read_latents(
            cache.data_ptr(), slots.data_ptr(), *_scales(scale, caches), latents.data_ptr(), *latents.shape
        )
        return latents

    def place_queries(
        self, q_THD: torch.Tensor, rows: Rows, out: torch.Tensor, *, copied: int, prologue: Prologue
    ) -> None:
        """Puts rows together in `out`: of each head the first `copied` elements, and the rotary part, rotated, last."""
        for first, last, at in rows.ranges:
            self._place_queries(
                q_THD[first:].data_ptr(),
                None if prologue.positions is None else prologue.positions + first * 8,
                prologue.cos_sin,
                out[at:].data_ptr(),
                last - first,
                self._problem.num_heads,
                q_THD.stride(0),
                self._problem.qk_nope_head_dim,
                self._problem.qk_rope_head_dim,
                copied,
                out.shape[2],
                prologue.interleaved,
            )

    def multiply(self, x_THK: torch.Tensor, weight_HNK: torch.Tensor, out: torch.Tensor) -> None:
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

    def spread_keys(self, keys_TR: torch.Tensor, out: torch.Tensor) -> None:
        """The rotary key of each token into the leading elements of each head of `out`."""
        self._spread_keys(
            keys_TR.data_ptr(),
            out.data_ptr(),
            keys_TR.shape[0],
            out.shape[1],
            keys_TR.stride(0),
            keys_TR.shape[1],
            out.stride(1),
        )

    def attend(
        self,
        layer: NativeLayer,
        launch: Launch,
        query: torch.Tensor,
        *,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        log_sums: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
        token_scales: torch.Tensor | None = None,
    ) -> None:
        """The attention kernel on queries, keys and values as they are; these may be latents, with their scales."""
        attention = self._attention[keys.dtype, layer.head_dim, layer.value_dim]
        attention(
            ctypes.addressof(layer),
            launch.address,
            query.data_ptr(),
            None,
            None,
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            *(_address(scale), _address(scale), _address(token_scales), _address(token_scales)),
            None,
            _address(log_sums),
            query.stride(0),
            0,
            0,
            0,
            *(None, None, None, None),
            0,
            0,
            0.0,
        )


def _scales(scale: torch.Tensor | None, caches: Caches) -> tuple[int | None, int | None]:
    """The scale of all latents, and those of tokens, which lie behind the latents."""
    return _address(scale), _address(caches[1] if len(caches) > 1 else None)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
