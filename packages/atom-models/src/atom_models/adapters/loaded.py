"""`LoadedAdapters`: the adapters that a model's linears have, by the number under which each was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from atom_models.adapters.adapted_linear import AdaptedLinear
from atom_models.adapters.adapter import Adapter
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.owners import of_decoder
from atom_models.adapters.reading import read_adapter
from atom_models.adapters.reading_tasks import read_task
from atom_models.adapters.step import AdapterStep
from atom_models.build_context import BuildContext
from atom_models.encoder import Encoder
from atom_models.layers.embedding import VocabularyEmbedding
from atom_models.layers.linear import Linear


class LoadedAdapters:
    """Loads adapters into a model that was built to take them (`BuildContext.takes_adapters`), and evicts them.

    Args:
        model: the model; its linears have their weights, or get them later.
        context: how it was built.
        max_loras: adapters at a time, at most.
        max_rank: the largest rank that is taken.
        fixed: their matrices keep their addresses, so that captured graphs may read them.

    Attributes:
        linears: inputs and outputs, over all ranks, of each linear that takes adapters, by its name.
        fixed: as given.
        num_changes: adapters that came and went; unless they are fixed, matrices lie elsewhere after each.

    Raises:
        AdapterError: none of its linears takes adapters.
    """

    def __init__(
        self, model: nn.Module, context: BuildContext, *, max_loras: int, max_rank: int, fixed: bool = False
    ) -> None:
        self._device, self._dtype = context.device, context.dtype
        self._max_loras, self._max_rank, self.fixed = max_loras, max_rank, fixed
        self.num_changes = 0
        linears = (module.adapted for module in model.modules() if isinstance(module, Linear | VocabularyEmbedding))
        self._linears: list[AdaptedLinear] = [adapted for adapted in linears if adapted is not None]
        self.linears = {part.name: part.shape for linear in self._linears for part in linear.parts}
        self._own_modules = partial(_modules_of, model) if isinstance(model, Encoder) else of_decoder(self.linears)
        self._loaded: dict[int, Adapter] = {}
        # The place of each adapter in the linears.
        self._places: dict[int, int] = {}
        if not self._linears:
            raise AdapterError(
                "no linear of this model takes adapters: layers of transformers do not (model_impl transformers); "
                "leave out enable_lora and lora_modules"
            )
        if fixed:
            for linear in self._linears:
                linear.fix(max_loras, max_rank)

    @property
    def all(self) -> Mapping[int, Adapter]:
        """What is loaded, on the host."""
        return self._loaded

    @property
    def num_bytes(self) -> int:
        """Bytes that all adapters together will take on the device, at most, beside what they have taken already."""
        elements = sum(linear.num_elements(self._max_rank) for linear in self._linears)
        return self._max_loras * elements * self._dtype.itemsize

    def load(self, adapter_id: int, folder: Path, task: str | None = None) -> None:
        """Reads the adapter of a folder, and has the linears take it.

        Args:
            adapter_id: its number, above 0, which no other has or had.
            task: the folder is the checkpoint's, with the adapter of this task among its weights; None for one that
                lies there alone.

        Raises:
            AdapterError: it cannot be served; nothing has changed then.
        """
        if task is not None:
            adapter = read_task(folder, task, self.linears, self._own_modules)
        else:
            adapter = read_adapter(folder, self.linears, max_rank=self._max_rank, own_modules=self._own_modules)
        self.attach(adapter_id, adapter)

    def attach(self, adapter_id: int, adapter: Adapter) -> None:
        """Has the linears take an adapter that was read before; raises AdapterError as `load`."""
        free = set(range(1, self._max_loras + 1)) - set(self._places.values())
        if not free:
            raise AdapterError(f"{self._max_loras} adapters are loaded, as many as there is room for")
        self._places[adapter_id] = place = min(free)
        self.num_changes += 1
        try:
            for linear in self._linears:
                linear.attach(place, adapter)
        except BaseException:
            self.unload(adapter_id)
            raise
        self._loaded[adapter_id] = adapter

    def unload(self, adapter_id: int) -> None:
        """Lets go of an adapter, if it is there; no step may have it any more."""
        self._loaded.pop(adapter_id, None)
        place = self._places.pop(adapter_id, None)
        if place is not None:
            self.num_changes += 1
            for linear in self._linears:
                linear.detach(place)

    def step(self, ids: np.ndarray) -> AdapterStep | None:
        """What linears are told of tokens with these adapters, int64 ``[T]``; None where no token has one."""
        if not ids.any():
            return None
        places = np.zeros_like(ids)
        for adapter_id, place in self._places.items():
            places[ids == adapter_id] = place
        return AdapterStep.of(places, self._device)


def _modules_of(model: Encoder, module: str) -> tuple[str, ...]:
    """The encoder's names for a module of its checkpoints."""
    names = model.own_name(f"{module}.weight") or ()
    return tuple(name.removesuffix(".weight") for name in ((names,) if isinstance(names, str) else names))
