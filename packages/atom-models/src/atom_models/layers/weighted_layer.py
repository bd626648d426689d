"""Layers whose weights are tensors of their own: each whole on every rank, or cut into equal pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_models.layers.layer import Layer
from atom_models.layers.loadable import ExpectedWeight, check_shape

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class _Slot:
    name: str
    expected: ExpectedWeight
    num_pieces: int

    @property
    def shape_on_rank(self) -> tuple[int, ...]:
        rows, *rest = self.expected.shape
        return (-(-rows // self.num_pieces), *rest)


class WeightedLayer(Layer):
    """A `Loadable` that calls `expect` for each of its tensors when it is built, and gets them all in `pack`."""

    ignored_weights: frozenset[str] = frozenset()

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self._context = context
        self._slots: dict[str, _Slot] = {}
        self._loaded: dict[str, torch.Tensor] = {}

    def expect(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        slot: str = "weight",
        dtype: torch.dtype | None = None,
        num_pieces: int = 1,
    ) -> None:
        """Announces a tensor of the checkpoint.

        Args:
            name: in full.
            shape: over all ranks.
            slot: what `pack` calls it.
            dtype: of what is kept; None is the model's.
            num_pieces: equal pieces of its first dimension, of which each rank keeps one, the last one padded with
                zeros. Where they are fewer than ranks, some keep the same one.
        """
        self._slots[name] = _Slot(slot, ExpectedWeight(shape, dtype or self._context.dtype), num_pieces)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        """This rank's part of each tensor, by slot: choose the kernel, and keep what it needs."""
        raise NotImplementedError

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {name: slot.expected for name, slot in self._slots.items()}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [slot.shape_on_rank for slot in self._slots.values()]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        slot, ranks = self._slots[name], self._context.collectives
        check_shape(name, tensor, slot.expected)
        shape, piece = slot.shape_on_rank, ranks.rank * slot.num_pieces // ranks.size
        part = tensor[piece * shape[0] : (piece + 1) * shape[0]]
        kept = torch.zeros(shape, dtype=slot.expected.dtype, device=self._context.device)
        kept[: part.shape[0]].copy_(part)
        self._loaded[slot.name] = kept

    def finish(self) -> None:
        weights, self._loaded = self._loaded, {}
        absent = [name for name, slot in self._slots.items() if slot.name not in weights]
        if absent:
            raise RuntimeError(f"{absent[0]} was never loaded")
        self.pack(weights)
