"""The cache write by AITER, with head norms and rotation before it: in one kernel where one does all that is asked.

Shapes: T tokens, H query heads, K key/value heads, D head_dim, R rotary_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.head_steps import HeadSteps
from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import no_rotation, rotary_halves, rotary_rows, unit_scale
from atom_kernels.powers_of_two import is_power_of_two
from atom_kernels.settings import fuse_norm_rope_cache

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.protocols import CacheLayout, Caches

# The most key heads, a power of two, of the kernel for norms, rotation and the write.
_MAX_KEY_HEADS = 32


@dataclass(frozen=True)
class NewTokens:
    """What a layer is given for the tokens of a step: raw at first, then as attention uses it.

    Attributes:
        q, k, v: ``[T, H, D]`` and ``[T, K, D]`` twice.
        slots: int64 ``[T]``, -1 to write nothing.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    slots: torch.Tensor


class CacheWriter:
    """Writes the keys and values of new tokens into a cache of `layout`, normed and rotated, and gives the queries."""

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem, self.layout = problem, layout
        self._has_scales = layout.name == "shuffled_scaled"
        self._is_shuffled = self._has_scales or layout.name == "shuffled"
        self._is_strided = any(tensor.strides is not None for tensor in layout.tensors)
        self._is_float8 = problem.kv_cache_dtype != problem.dtype
        self._stored_as = "fp8" if self._is_float8 else "auto"
        self._heads = HeadSteps()

    def write(self, tokens: NewTokens, caches: Caches, prologue: AttentionPrologue | None) -> NewTokens:
        """The tokens with normed and rotated queries and keys; what was given is left alone."""
        q, k, v = (dense_heads(x) for x in (tokens.q, tokens.k, tokens.v))
        tokens = NewTokens(q, k, v, tokens.slots)
        if prologue is None:
            self._store(tokens, caches)
            return tokens
        # AITER's kernels read positions without holes between them.
        prologue = replace(prologue, positions=prologue.positions.contiguous())
        norms, table = (prologue.q_norm_weight, prologue.k_norm_weight), prologue.cos_sin_cache
        if norms[0] is not None and norms[1] is not None and table is not None and self._does_all(table):
            return self._norm_rotate_store(tokens, caches, prologue, (norms[0], norms[1]), table)
        q, k = (
            x if weight is None else self._heads.norm(x, weight, prologue.norm_eps)
            for x, weight in zip((tokens.q, tokens.k), norms, strict=True)
        )
        tokens = replace(tokens, q=q, k=k)
        if table is not None and self._rotates_whole_heads(table):
            halves = rotary_halves(table, torch.float32)
            return self._rotate_store(tokens, caches, prologue.positions, halves, not prologue.interleaved)
        if table is not None:
            q, k = self._heads.rotate(q, k, prologue.positions, table, prologue.interleaved)
            tokens = replace(tokens, q=q, k=k)
        self._store(tokens, caches)
        return tokens

    # --- norms, rotation and the write --------------------------------------------------------------------------------

    def _does_all(self, table: torch.Tensor) -> bool:
        problem = self.problem
        return (
            fuse_norm_rope_cache()
            and self._is_shuffled
            and table.shape[1] == problem.head_dim
            and is_power_of_two(problem.num_kv_heads)
            and problem.num_kv_heads <= _MAX_KEY_HEADS
            and library().has("fused_qk_norm_rope_cache_quant_shuffle")
        )

    def _norm_rotate_store(
        self,
        tokens: NewTokens,
        caches: Caches,
        prologue: AttentionPrologue,
        weights: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor,
    ) -> NewTokens:
        # In place, on rows of all heads.
        q_TX, k_TX = (x.flatten(1).clone() for x in (tokens.q, tokens.k))
        dtype, one = q_TX.dtype, unit_scale(q_TX.device)
        q_weight, k_weight = (weight.to(dtype) for weight in weights)
        keys, values, *scales = caches
        self._norm_rope_cache(
            q_TX, k_TX, tokens.v.flatten(1), prologue.norm_eps, q_weight, k_weight,
            rotary_rows(table, dtype), not prologue.interleaved, prologue.positions, keys, values, tokens.slots,
            *(scales or (one, one)),
        )  # fmt: skip
        shape = (-1, self.problem.head_dim)
        return replace(tokens, q=q_TX.unflatten(1, shape), k=k_TX.unflatten(1, shape))

    @cached_property
    def _norm_rope_cache(self) -> Any:
        problem = self.problem
        return library().bind(
            "fused_qk_norm_rope_cache_quant_shuffle",
            "q", "k", "v", "eps", "qw", "kw", "cos_sin_cache", "is_neox_style", "pos_ids", "k_cache", "v_cache",
            "slot_mapping", "k_scale", "v_scale",
            num_heads_q=problem.num_heads,
            num_heads_k=problem.num_kv_heads,
            num_heads_v=problem.num_kv_heads,
            head_dim=problem.head_dim,
            kv_cache_dtype=self._stored_as,
        )  # fmt: skip

    # --- rotation and the write ---------------------------------------------------------------------------------------

    def _rotates_whole_heads(self, table: torch.Tensor) -> bool:
        return table.shape[1] == self.problem.head_dim and self._can_rotate_store

    @property
    def _can_rotate_store(self) -> bool:
        problem = self.problem
        # The release on PyPI writes shuffled keys, but no shuffled values; none takes the scales of tokens.
        if self._has_scales or (self._is_shuffled and library().api.release == "pypi"):
            return False
        stored = problem.kv_cache_dtype == "bfloat16" or self._is_float8
        return stored and is_power_of_two(problem.head_dim) and is_power_of_two(problem.block_size)

    def _rotate_store(
        self,
        tokens: NewTokens,
        caches: Caches,
        positions: torch.Tensor,
        halves: tuple[torch.Tensor, torch.Tensor],
        is_neox: bool,
    ) -> NewTokens:
        one = unit_scale(tokens.q.device) if self._is_float8 else None
        q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (tokens.q, tokens.k))
        self._rope_cache(
            tokens.q, tokens.k, tokens.v, *caches, tokens.slots, positions, *halves, one, one, is_neox, q_out, k_out
        )
        return replace(tokens, q=q_out, k=k_out)

    @cached_property
    def _rope_cache(self) -> Any:
        return library().bind(
            "fused_qk_rope_reshape_and_cache",
            "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos", "sin", "k_scale", "v_scale",
            "is_neox", "q_out", "k_out",
            flash_layout=not self._is_shuffled,
            output_zeros=False,
        )  # fmt: skip

    # --- the write ----------------------------------------------------------------------------------------------------

    def _store(self, tokens: NewTokens, caches: Caches) -> None:
        if self._is_strided:  # the kernel that reads strides of blocks also rotates; these angles turn nothing
            halves = no_rotation(self.problem.head_dim // 2, tokens.q.device)
            self._rotate_store(tokens, caches, torch.zeros_like(tokens.slots), halves, is_neox=True)
            return
        if self._has_scales:
            self._quantize_and_cache(tokens.k, tokens.v, *caches, tokens.slots)
        else:
            one = unit_scale(tokens.k.device)
            self._reshape_and_cache(tokens.k, tokens.v, *caches, tokens.slots, one, one)

    @cached_property
    def _reshape_and_cache(self) -> Any:
        given = ("key", "value", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale")
        if self._is_shuffled:
            return library().bind("reshape_and_cache", *given, kv_cache_dtype=self._stored_as, asm_layout=True)
        return library().bind("reshape_and_cache_flash", *given, kv_cache_dtype=self._stored_as)

    @cached_property
    def _quantize_and_cache(self) -> Any:
        return library().bind(
            "reshape_and_cache_with_pertoken_quant",
            "key", "value", "key_cache", "value_cache", "k_dequant_scales", "v_dequant_scales", "slot_mapping",
            asm_layout=True,
        )  # fmt: skip


def dense_heads(x_THD: torch.Tensor) -> torch.Tensor:
    """With the elements of a token's heads side by side, as every kernel reads them; tokens may lie apart."""
    return x_THD if x_THD.stride()[1:] == (x_THD.shape[2], 1) else x_THD.contiguous()
