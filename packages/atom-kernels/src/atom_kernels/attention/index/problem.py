"""What one lightning index asks for, and what is done to its raw queries and keys first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.mixers.cache_format import CacheFormat
from atom_kernels.mixers.requests import Requests, num_keys, num_pairs, num_rows
from atom_kernels.operator import Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheLayout, CacheTensor
from atom_kernels.protocols.pages import Pages

if TYPE_CHECKING:
    import torch

    from atom_kernels.mixers.backend import MixerBackend
    from atom_kernels.operator import WeightSpec

_FLOAT32 = CacheFormat("float32")


@dataclass(frozen=True, kw_only=True)
class IndexProblem:
    """Shapes of one layer's index, which every rank has whole.

    DeepSeek-AI 2025, "DeepSeek-V3.2", https://arxiv.org/abs/2512.02556, section 2.1. A small key of each token is
    cached beside its latent, in the same block. An index chooses, for each query, the positions that attention reads.

    Attributes:
        num_heads: query heads; all of them meet one key.
        head_dim: elements of a query head, and of a key.
        rotary_dim: leading elements of both that are rotated.
        top_k: positions that are chosen for a query at most.
        scale: factor on a head's weight, usually ``(num_heads * head_dim) ** -0.5``.
        dtype: the dtype of queries, keys and heads' weights, by torch name; keys are cached in it.
        block_size: tokens of one cache block.
        cache: ignored, since keys are not rounded: which positions are chosen would depend on it.
    """

    num_heads: int
    head_dim: int
    rotary_dim: int
    top_k: int
    scale: float
    dtype: str
    block_size: int
    cache: CacheFormat = _FLOAT32
    name: ClassVar[str] = "lightning_index"

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim", "top_k", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"IndexProblem.{name} is {getattr(self, name)}; it must be at least 1")
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"IndexProblem.rotary_dim is {self.rotary_dim}; it must be even and at most head_dim, {self.head_dim}"
            )
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"IndexProblem.dtype is {self.dtype!r}; give one of {', '.join(DTYPE_BYTES)}")

    @property
    def keeps(self) -> Pages:
        """A key of every token, as latents are kept: both have one block table."""
        return Pages()

    @property
    def kv_cache_dtype(self) -> str:
        """The dtype of what is cached, by torch name."""
        return self.dtype

    @property
    def out_shape(self) -> tuple[int]:
        """The positions chosen for one token."""
        return (self.top_k,)

    @property
    def out_dtype(self) -> str:
        return "int32"

    @property
    def layout(self) -> CacheLayout:
        """Keys token by token: physically adjacent blocks are one run of tokens."""
        keys = CacheTensor("index_key", (self.block_size, self.head_dim), self.dtype)
        return CacheLayout("index_keys", self.block_size, (keys,))

    @property
    def weights(self) -> dict[str, WeightSpec]:
        return {}

    def work(self, requests: Requests) -> Work:
        """Each key read once, queries read and choices written; a product for each pair where there is a choice."""
        long = [(queries, length) for queries, length in requests if length > self.top_k]
        elements = num_keys(long) * self.head_dim + num_rows(requests) * (self.num_heads + 1) * (self.head_dim + 1)
        chosen = sum(min(length, self.top_k) * queries for queries, length in requests)
        flops = 2 * num_pairs(long) * self.num_heads * self.head_dim
        return Work(elements * DTYPE_BYTES[self.dtype] + 4 * chosen, flops)

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.index.backends import BACKENDS

        return BACKENDS


@dataclass(frozen=True)
class IndexPrologue:
    """The rotation of the leading elements of queries and keys.

    Attributes:
        positions: int64 ``[num_tokens]``.
        cos_sin_cache: float32 ``[num_positions, rotary_dim]``, cosines in the first half, sines in the second.
        interleaved: pairs are neighbors instead of halves.
    """

    positions: torch.Tensor
    cos_sin_cache: torch.Tensor
    interleaved: bool = False
