"""How the bytes of one cache block of one layer are laid out. Torch-free at import."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Caches: TypeAlias = "tuple[torch.Tensor, ...]"
"""One layer's cache: ``[num_blocks, *shape]`` for each tensor of its layout."""

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

    def allocate(self, num_blocks: int, device: str | torch.device = "cpu") -> Caches:
        """Zeroed tensors ``[num_blocks, *shape]``, one for each entry of `tensors`."""
        import torch

        return tuple(
            torch.zeros((num_blocks, *tensor.shape), dtype=getattr(torch, tensor.dtype), device=device)
            for tensor in self.tensors
        )
