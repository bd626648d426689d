"""What one attention layer needs cached, and how the bytes of one block are laid out. Torch-free at import."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Dtypes are named by strings here so that planners and schedulers never import torch.
DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class KVCacheSpec:
    """The cache that one attention layer asks the host for.

    Attributes:
        num_kv_heads: key/value heads held by this rank.
        head_dim: elements of one head.
        dtype: storage dtype by torch name, e.g. ``"bfloat16"`` or ``"float8_e4m3fn"``.
        sliding_window: tokens visible to a query including itself; None sees everything.
        latent: a token has one vector of `head_dim`, from which the layer makes keys and values.
    """

    num_kv_heads: int
    head_dim: int
    dtype: str
    sliding_window: int | None = None
    latent: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in this layer."""
        return (1 if self.latent else 2) * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a block: `shape` is that of a single block.

    Attributes:
        strides: elements from block to block, then along each dimension of a block; None is contiguous.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class CacheLayout:
    """The tensors of one block of one layer; host and attention backend agree on one before any memory exists."""

    name: str
    block_size: int
    tensors: tuple[CacheTensor, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes that one block of one layer takes."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    def allocate(self, num_blocks: int, device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
        """Zeroed tensors ``[num_blocks, *shape]``, one for each entry of `tensors`."""
        import torch

        return tuple(
            torch.zeros((num_blocks, *tensor.shape), dtype=getattr(torch, tensor.dtype), device=device)
            for tensor in self.tensors
        )
