"""What one attention layer of an encoder asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from atom_kernels.mixers.requests import Requests, num_rows
from atom_kernels.operator import Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheLayout
from atom_kernels.protocols.pages import Pages

if TYPE_CHECKING:
    from atom_kernels.mixers.backend import MixerBackend
    from atom_kernels.mixers.cache_format import CacheFormat
    from atom_kernels.operator import WeightSpec


@dataclass(frozen=True)
class EncoderAttentionProblem:
    """Shapes and rules of one attention layer, as this rank sees it. A step holds each of its texts whole.

    Attributes:
        num_heads: heads, each with queries, keys and values of its own.
        head_dim: elements of one head.
        scale: factor on ``q @ k``.
        dtype: the dtype of inputs and output, by torch name.
        cache, block_size: what hosts say of caches; this layer has none, and its blocks have no bytes.
        window: a token sees those at most so far away, on both sides; None sees the whole text.
        causal: a token sees none behind itself, as the texts of CLIP.
    """

    num_heads: int
    head_dim: int
    scale: float
    dtype: str
    cache: CacheFormat
    block_size: int
    window: int | None = None
    causal: bool = False
    name: ClassVar[str] = "encoder_attention"

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"EncoderAttentionProblem.{name} is {getattr(self, name)}; it must be at least 1")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"EncoderAttentionProblem.dtype is {self.dtype!r}; give one of {', '.join(DTYPE_BYTES)}")
        if not self.scale > 0:
            raise ValueError(f"EncoderAttentionProblem.scale is {self.scale}; it must be positive")
        if self.window is not None and self.window < 1:
            raise ValueError(f"EncoderAttentionProblem.window is {self.window}; it must be at least 1 or None")

    @property
    def kv_cache_dtype(self) -> str:
        """The dtype that a cache would have."""
        return self.cache.dtype

    @property
    def out_shape(self) -> tuple[int, int]:
        """The shape of one token's output."""
        return self.num_heads, self.head_dim

    @property
    def out_dtype(self) -> str:
        return self.dtype

    @property
    def keeps(self) -> Pages:
        """Blocks that are counted and hold nothing, so that hosts need no rules of their own for encoders."""
        return Pages()

    @property
    def layout(self) -> CacheLayout:
        """No tensors."""
        return CacheLayout("nothing", self.block_size, ())

    @property
    def weights(self) -> dict[str, WeightSpec]:
        """None."""
        return {}

    def work(self, requests: Requests) -> Work:
        """Queries, keys and values read and outputs written once; two products for every pair that sees each other."""
        per_row, pairs = self.num_heads * self.head_dim, 0
        for _, length in requests:
            reach = length if self.window is None else min(self.window, length)
            # Fewer tokens have a key at a distance, the larger it is: reach * (length - mean distance).
            pairs += length + (1 if self.causal else 2) * (reach * length - reach * (reach + 1) // 2)
        return Work(4 * num_rows(requests) * per_row * DTYPE_BYTES[self.dtype], 4 * pairs * per_row)

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        """What can run it, in the order in which they are tried."""
        from atom_kernels.attention.encoder import native_backend, reference, torch_backend, triton_backend

        return triton_backend.BACKEND, native_backend.BACKEND, torch_backend.BACKEND, reference.BACKEND
