"""Attention by our own C kernels: one call a layer for head norms, rotation, cache write and attention.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.native_functions import attention_function, unavailable
from atom_kernels.attention.weights import NO_WEIGHTS, AttentionWeights
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES, TOKEN_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

_MAX_HEAD_DIM = 256


def supports(problem: AttentionProblem, platform: Platform) -> str | None:
    if problem.head_dim % 2 or problem.head_dim > _MAX_HEAD_DIM:
        return f"written for even head_dim up to {_MAX_HEAD_DIM}, not {problem.head_dim}"
    return unavailable(problem.dtype, problem.kv_cache_dtype)


def _strides_with_scales(problem: AttentionProblem, platform: Platform) -> str | None:
    if problem.cache.scales == TOKEN_SCALES:
        return "reads scales of tokens in contiguous blocks only"
    return None


class NativeLayer(ctypes.Structure):
    """`Layer` of attention.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim", "block_size")),
        *((name, ctypes.c_int64) for name in ("block_stride", "token_stride", "head_stride", "window")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


class NativeBatch(ctypes.Structure):
    """`Batch` of attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query_starts", "query_ends", "seq_lens", "block_table")),
        *((name, ctypes.c_void_p) for name in ("key_ends", "slot_mapping")),
        *((name, ctypes.c_int64) for name in ("block_table_stride", "num_reqs", "num_tokens")),
        ("sees_until", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Launch:
    """A batch for the attention kernel: where it lies, and the tensors that it points into, which must outlive it."""

    batch: NativeBatch
    address: int
    tensors: tuple[torch.Tensor | None, ...]

    @classmethod
    def of(
        cls,
        query_starts: torch.Tensor,
        query_ends: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        *,
        key_ends: torch.Tensor | None = None,
        slot_mapping: torch.Tensor | None = None,
        sees_until: torch.Tensor | None = None,
    ) -> Launch:
        """A launch over contiguous tensors in the dtypes of attention.h; rows of the block table may lie apart."""
        batch = NativeBatch(
            query_starts=query_starts.data_ptr(),
            query_ends=query_ends.data_ptr(),
            seq_lens=seq_lens.data_ptr(),
            key_ends=None if key_ends is None else key_ends.data_ptr(),
            block_table=block_table.data_ptr(),
            slot_mapping=None if slot_mapping is None else slot_mapping.data_ptr(),
            block_table_stride=block_table.stride(0),
            num_reqs=seq_lens.shape[0],
            num_tokens=0 if slot_mapping is None else slot_mapping.shape[0],
            sees_until=None if sees_until is None else sees_until.data_ptr(),
        )
        tensors = (query_starts, query_ends, seq_lens, block_table, key_ends, slot_mapping, sees_until)
        return cls(batch, ctypes.addressof(batch), tensors)


class NativeAttention(MixerRunner):
    """Calls the C kernels of one dtype."""

    recordable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem = problem
        self.layout = layout
        self._attention = attention_function(problem.dtype, problem.kv_cache_dtype, problem.head_dim)
        self._dtype = getattr(torch, problem.dtype)
        self._cache_dtype = getattr(torch, problem.kv_cache_dtype)
        self._head_strides = (problem.head_dim, 1)
        block_stride, token_stride, head_stride = _strides(layout)
        self._layer = NativeLayer(
            num_heads=problem.num_heads,
            num_kv_heads=problem.num_kv_heads,
            head_dim=problem.head_dim,
            value_dim=problem.head_dim,
            block_size=problem.block_size,
            block_stride=block_stride,
            token_stride=token_stride,
            head_stride=head_stride,
            window=problem.sliding_window or 0,
            scale=problem.scale,
            soft_cap=problem.soft_cap or 0.0,
        )
        self._layer_address = ctypes.addressof(self._layer)

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> AttentionWeights:
        # The kernel only sees pointers: everything is contiguous float32.
        kept = {name: None if weight is None else weight.float().contiguous() for name, weight in weights.items()}
        return AttentionWeights.of(kept)

    def build_metadata(self, geometry: BatchGeometry) -> Launch:
        step = geometry.dense()
        return Launch.of(
            step.query_start_loc,
            step.query_start_loc[1:],
            step.seq_lens[: step.num_reqs],
            step.block_table,
            slot_mapping=step.slot_mapping,
            sees_until=step.sees_until,
        )

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: Launch,
        *,
        weights: AttentionWeights | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        (q_THD, k_TKD, v_TKD), weights = inputs, weights or NO_WEIGHTS
        if q_THD.dtype is not self._dtype or caches[0].dtype is not self._cache_dtype:
            planned = f"{self._dtype} over a cache of {self._cache_dtype}"
            raise TypeError(f"attention was planned for {planned}, got {q_THD.dtype} and {caches[0].dtype}")
        strides = (q_THD.stride(), k_TKD.stride(), v_TKD.stride())
        if any(stride[1:] != self._head_strides for stride in strides):
            q_THD, k_TKD, v_TKD = q_THD.contiguous(), k_TKD.contiguous(), v_TKD.contiguous()
            strides = (q_THD.stride(), k_TKD.stride(), v_TKD.stride())
        out_THD = torch.empty(q_THD.shape, dtype=self._dtype)
        self._attention(
            self._layer_address,
            metadata.address,
            q_THD.data_ptr(),
            k_TKD.data_ptr(),
            v_TKD.data_ptr(),
            caches[0].data_ptr(),
            caches[1].data_ptr(),
            out_THD.data_ptr(),
            _address(weights.key_scale),
            _address(weights.value_scale),
            *((caches[2].data_ptr(), caches[3].data_ptr()) if len(caches) == 4 else (None, None)),
            _address(weights.sinks),
            None,
            strides[0][0],
            strides[1][0],
            strides[2][0],
            q_THD.shape[0],
            *self._prologue_arguments(prologue),
        )
        return out_THD

    def _prologue_arguments(self, prologue: AttentionPrologue | None) -> tuple[int | float | None, ...]:
        if prologue is None:
            return (None, None, None, None, 0, 0, 0.0)
        positions, cos_sin = prologue.positions, prologue.cos_sin_cache
        q_norm, k_norm = prologue.q_norm_weight, prologue.k_norm_weight
        # The kernel only sees pointers, and would read a wrong dtype as garbage.
        if positions.dtype is not torch.int64 or positions.dim() != 1 or not positions.is_contiguous():
            raise TypeError(f"positions must be contiguous int64 [T], got {positions.dtype} {list(positions.shape)}")
        if cos_sin is not None and (cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous()):
            raise TypeError(f"cos_sin_cache must be contiguous float32, got {cos_sin.dtype}")
        for weight in (q_norm, k_norm):
            if weight is not None and weight.dtype is not self._dtype:
                raise TypeError(f"norm weights must be {self._dtype} like the queries, got {weight.dtype}")
        return (
            positions.data_ptr(),
            _address(cos_sin),
            _address(q_norm),
            _address(k_norm),
            0 if cos_sin is None else cos_sin.shape[1],
            prologue.interleaved,
            prologue.norm_eps,
        )


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _strides(layout: CacheLayout) -> tuple[int, int, int]:
    """Elements from block to block, token to token, and head to head."""
    keys = layout.tensors[0]
    block_size, num_heads, head_dim = keys.shape
    if keys.strides is not None:
        return keys.strides[0], keys.strides[1], keys.strides[2]
    return block_size * num_heads * head_dim, num_heads * head_dim, head_dim


BACKEND = MixerBackend(
    name="native",
    supports=supports,
    create=NativeAttention,
    why_not_strided=_strides_with_scales,
    cache_scales=ALL_SCALES,
)
