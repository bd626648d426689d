"""`HostWeights`: weights that left a device for the host's memory, and come back to the same tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any

import torch

_CONTAINERS = (dict, list, tuple, set, frozenset, partial, MethodType, CellType)


class HostWeights:
    """Empties the memory of every tensor of `model` that lies on a device, until `restore`.

    The tensors stay what they are, whoever holds them: only the memory behind them goes and comes, at another address.
    So graphs that were captured over them have to be gone.

    Args:
        model: what holds the tensors, in attributes, containers and closures. Those that are not found stay where
            they are, and nothing else comes of that.
        leaves: whether a tensor is to leave; those on the host already are not.
    """

    def __init__(self, model: Any, leaves: Callable[[torch.Tensor], bool] = lambda tensor: not tensor.is_cpu) -> None:
        storages = {
            storage.data_ptr(): storage
            for tensor in tensors_of(model)
            if leaves(tensor) and (storage := tensor.untyped_storage()).nbytes() and storage.resizable()
        }
        self._held: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        for storage in storages.values():
            self._held.append((storage, torch.UntypedStorage(storage.nbytes()).copy_(storage)))
            storage.resize_(0)

    @property
    def num_bytes(self) -> int:
        """Bytes that the host holds."""
        return sum(copy.nbytes() for _, copy in self._held)

    def restore(self) -> None:
        """Give every tensor its memory and its numbers back."""
        while self._held:
            storage, copy = self._held.pop()
            storage.resize_(copy.nbytes())
            storage.copy_(copy)


def tensors_of(root: Any) -> Iterator[torch.Tensor]:
    """The dense tensors that `root` holds, through modules, objects of this project, containers and closures."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            if thing.layout is torch.strided and not thing.is_mkldnn:
                yield thing
        elif isinstance(thing, FunctionType):
            waiting += [*(thing.__closure__ or ()), thing.__defaults__, thing.__kwdefaults__]
        elif isinstance(thing, BuiltinFunctionType):
            waiting.append(thing.__self__)
        elif isinstance(thing, _CONTAINERS) or _is_ours(thing):
            waiting += gc.get_referents(thing)


def _is_ours(thing: Any) -> bool:
    return isinstance(thing, torch.nn.Module) or type(thing).__module__.startswith("atom_")
