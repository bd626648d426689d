"""Counts the bytes of tensors that are alive, at every operation of torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class LiveStorages(TorchDispatchMode):
    """While it is on: `num_bytes` of what its operations made and somebody still holds, and the `peak` of that."""

    def __init__(self) -> None:
        super().__init__()
        # By storage: whether it is gone, and its bytes.
        self._storages: dict[int, tuple[Callable[[], bool], int]] = {}
        self.peak = 0

    @property
    def num_bytes(self) -> int:
        self._storages = {key: one for key, one in self._storages.items() if not one[0]()}
        return sum(size for _, size in self._storages.values())

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                key, is_gone, size = _watched(tensor)
                if key not in self._storages or self._storages[key][0]():
                    self._storages[key] = is_gone, size
        self.peak = max(self.peak, self.num_bytes)
        return result


def _watched(tensor: torch.Tensor) -> tuple[int, Callable[[], bool], int]:
    """A key, what says that the memory is gone, and its bytes."""
    if tensor.is_mkldnn:  # oneDNN's own layout, which no other tensor shares and whose storage nobody sees
        alive = weakref.ref(tensor)
        return id(tensor), lambda: alive() is None, tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    reference = StorageWeakRef(storage)
    return reference.cdata, reference.expired, storage.nbytes()
