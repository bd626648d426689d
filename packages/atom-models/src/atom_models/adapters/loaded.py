"""`LoadedAdapters`: the adapters that a model's linears have, by the number under which each was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import nn

from atom_models.adapters.adapted_linear import AdaptedLinear
from atom_models.adapters.adapter import Adapter
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.reading import read_adapter
from atom_models.adapters.step import AdapterStep
from atom_models.build_context import BuildContext
from atom_models.layers.linear import Linear


class LoadedAdapters:
    """Loads adapters into a model that was built to take them (`BuildContext.takes_adapters`), and evicts them.

    Args:
        model: the model; its linears have their weights, or get them later.
        context: how it was built.
        max_rank: the largest rank that is taken.

    Attributes:
        linears: inputs and outputs, over all ranks, of each linear that takes adapters, by its name.

    Raises:
        AdapterError: none of its linears takes adapters.
    """

    def __init__(self, model: nn.Module, context: BuildContext, *, max_rank: int) -> None:
        self._device, self._dtype, self._max_rank = context.device, context.dtype, max_rank
        linears = (module.adapted for module in model.modules() if isinstance(module, Linear))
        self._linears: list[AdaptedLinear] = [adapted for adapted in linears if adapted is not None]
        self.linears = {part.name: part.shape for linear in self._linears for part in linear.parts}
        self._loaded: dict[int, Adapter] = {}
        if not self._linears:
            raise AdapterError(
                "no linear of this model takes adapters: layers of transformers do not (model_impl transformers); "
                "leave out enable_lora and lora_modules"
            )

    @property
    def all(self) -> Mapping[int, Adapter]:
        """What is loaded, on the host."""
        return self._loaded

    def num_bytes(self, count: int) -> int:
        """Bytes that so many adapters take on the device, at most."""
        elements = sum(linear.num_elements(self._max_rank) for linear in self._linears)
        return count * elements * self._dtype.itemsize

    def load(self, adapter_id: int, folder: Path) -> None:
        """Reads the adapter of a folder, and has the linears take it.

        Args:
            adapter_id: its number, above 0, which no other has or had.

        Raises:
            AdapterError: it cannot be served; nothing has changed then.
        """
        self.attach(adapter_id, read_adapter(folder, self.linears, max_rank=self._max_rank))

    def attach(self, adapter_id: int, adapter: Adapter) -> None:
        """Has the linears take an adapter that was read before; raises AdapterError as `load`."""
        try:
            for linear in self._linears:
                linear.attach(adapter_id, adapter)
        except BaseException:
            self.unload(adapter_id)
            raise
        self._loaded[adapter_id] = adapter

    def unload(self, adapter_id: int) -> None:
        """Lets go of an adapter, if it is there; no step may have it any more."""
        self._loaded.pop(adapter_id, None)
        for linear in self._linears:
            linear.detach(adapter_id)

    def step(self, ids: np.ndarray) -> AdapterStep | None:
        """What linears are told of tokens with these adapters, int64 ``[T]``; None where no token has one."""
        return AdapterStep.of(ids, self._loaded, self._device)
