"""The memory of the KV cache: tensors for each place of a page, which layers of different groups share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from atom_core.worker.cache.pages import CachePages
from atom_core.worker.devices.protocol import WorkerDevice
from atom_kernels.protocols import CacheLayout, Caches


def allocate_caches(
    mixers: Mapping[str, Any], pages: CachePages, num_blocks: int, device: WorkerDevice, *, num_slots: int = 0
) -> dict[str, Caches]:
    """Zeroed tensors ``[num_blocks, *shape]`` for each layer, by name; those in the same place share their memory.

    Layers that keep a state have ``[num_slots, *shape]`` of their own.
    """
    places = [device.allocate(layout, num_blocks) for layout in pages.places]
    caches = {}
    for group in pages.groups:
        if group.spec.in_slots:
            states = {name: device.allocate(mixers[name].plan.layout, num_slots) for name in group.layers}
            caches.update(states)
            continue
        for name, tensors in zip(group.layers, places, strict=False):
            layout: CacheLayout = mixers[name].plan.layout
            caches[name] = tuple(
                tensor.view(getattr(torch, wanted.dtype)).view(num_blocks, *wanted.shape)
                for tensor, wanted in zip(tensors, layout.tensors, strict=True)
            )
    return caches
