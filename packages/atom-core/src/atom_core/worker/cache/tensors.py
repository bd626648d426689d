"""The memory of the KV cache: tensors for each place of a page, which layers of different groups share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from atom_core.worker.cache.pages import CachePages
from atom_kernels.protocols import CacheLayout, Caches


def allocate_caches(
    mixers: Mapping[str, Any], pages: CachePages, num_blocks: int, device: str, *, num_slots: int = 0
) -> dict[str, Caches]:
    """Zeroed tensors ``[num_blocks, *shape]`` for each layer, by name; those in the same place share their memory.

    Layers that keep a state have ``[num_slots, *shape]`` of their own.
    """
    places = [_allocate(layout, num_blocks, device) for layout in pages.places]
    caches = {}
    for group in pages.groups:
        if group.spec.in_slots:
            states = {name: _allocate(mixers[name].plan.layout, num_slots, device) for name in group.layers}
            caches.update(states)
            continue
        for name, tensors in zip(group.layers, places, strict=False):
            layout: CacheLayout = mixers[name].plan.layout
            caches[name] = tuple(
                tensor.view(getattr(torch, wanted.dtype)).view(num_blocks, *wanted.shape)
                for tensor, wanted in zip(tensors, layout.tensors, strict=True)
            )
    return caches


def _allocate(layout: CacheLayout, num_blocks: int, device: str) -> Caches:
    if device != "cpu":
        return layout.allocate(num_blocks, device)
    return tuple(_untouched((num_blocks, *tensor.shape), tensor.dtype) for tensor in layout.tensors)


def _untouched(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Zeros whose pages cost no memory before they are first written."""
    item = getattr(torch, dtype)
    count = int(np.prod(shape)) * item.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(item).view(shape)
