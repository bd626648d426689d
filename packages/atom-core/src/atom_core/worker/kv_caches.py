"""The memory of the KV cache: the tensors of each attention layer, as its plan lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def block_bytes(attention_layers: Mapping[str, Any]) -> int:
    """Bytes of one block over all layers."""
    return sum(layer.plan.layout.block_bytes for layer in attention_layers.values())


def allocate_caches(
    attention_layers: Mapping[str, Any], num_blocks: int, device: str
) -> dict[str, tuple[torch.Tensor, ...]]:
    """Zeroed tensors ``[num_blocks, *shape]`` for each layer, by name."""
    if device != "cpu":
        return {name: layer.plan.layout.allocate(num_blocks, device) for name, layer in attention_layers.items()}
    return {
        name: tuple(_untouched((num_blocks, *tensor.shape), tensor.dtype) for tensor in layer.plan.layout.tensors)
        for name, layer in attention_layers.items()
    }


def _untouched(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Zeros whose pages cost no memory before they are first written."""
    item = getattr(torch, dtype)
    count = int(np.prod(shape)) * item.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(item).view(shape)
