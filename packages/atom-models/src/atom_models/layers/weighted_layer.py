"""Layers whose weights are tensors of their own: each whole on every rank, or cut into equal pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.formats import Plain
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import check_shape
from atom_models.layers.matrices import MatrixStack, StoredMatrix
from atom_models.layers.weights import RankWeight, Weights
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class _Slot:
    name: str
    expected: ExpectedWeight
    num_pieces: int
    parts: tuple[int, ...]

    @property
    def shape_on_rank(self) -> tuple[int, ...]:
        _, *rest = self.expected.shape
        return (sum(self._height(part) for part in self.parts), *rest)

    def cut(self, tensor: torch.Tensor, piece: int) -> torch.Tensor:
        """The piece of a whole tensor, without what pads the last one."""
        pieces = []
        for part in tensor.split(list(self.parts)):
            height = self._height(len(part))
            pieces.append(part[piece * height : (piece + 1) * height])
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _height(self, part: int) -> int:
        return -(-part // self.num_pieces)


class WeightedLayer(Layer):
    """A `Loadable` that calls `expect` for each of its tensors when it is built, and gets them all in `pack`."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self._context = context
        self._slots: dict[str, _Slot] = {}
        self._loaded: dict[str, torch.Tensor] = {}
        self._matrices: dict[str, MatrixStack] = {}
        self._ignored: set[str] = set()

    def expect(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        slot: str = "weight",
        dtype: torch.dtype | None = None,
        num_pieces: int = 1,
        parts: tuple[int, ...] = (),
    ) -> None:
        """Announces a tensor of the checkpoint.

        Args:
            name: in full.
            shape: over all ranks.
            slot: what `pack` calls it.
            dtype: the dtype of what is kept; None is the model's.
            num_pieces: equal pieces of its first dimension, of which each rank keeps one, the last one padded with
                zeros. Where they are fewer than ranks, some keep the same one.
            parts: sizes of parts of that dimension, each of which is cut into pieces that come out even; by default it
                is one.
        """
        expected = ExpectedWeight(shape, dtype or self._context.dtype)
        self._slots[name] = _Slot(slot, expected, num_pieces, parts or (shape[0],))

    def expect_matrix(self, name: str, shape: tuple[int, int], *, slot: str) -> None:
        """Announces the matrix of a linear, in whatever layout it is stored; ranks share its rows evenly.

        Args:
            name: the linear's name. `pack` gets its numbers in the model's dtype.
        """
        ranks, dtype = self._context.collectives, self._context.dtype
        stored, height = self._context.quantization.for_layer(name, dtype).stored, shape[0] // ranks.size
        rows = (ranks.rank * height, (ranks.rank + 1) * height)
        matrix = StoredMatrix(name, stored, shape, (rows,), (0, shape[1]))
        self._matrices[slot] = MatrixStack((matrix,), self._context.device)
        self._ignored |= {f"{name}.{suffix}" for suffix in stored.ignored}

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        """This rank's part of each tensor, by slot: choose the kernel, and keep what it needs."""
        raise NotImplementedError

    def ignored_weights(self) -> frozenset[str]:
        return frozenset(self._ignored)

    def weights(self) -> list[Weights]:
        found = [(slot.shape_on_rank, slot.expected.dtype) for slot in self._slots.values()]
        on_rank = [RankWeight(shape, math.prod(shape) * dtype.itemsize) for shape, dtype in found]
        own = Weights(lambda: {name: slot.expected for name, slot in self._slots.items()}, on_rank)
        return ([own] if self._slots else []) + [self.weights_of(stack) for stack in self._matrices.values()]

    def weights_of(self, stack: MatrixStack) -> Weights:
        """What it says of a matrix."""
        return Weights(stack.expected, [stack.on_rank()])

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        for stack in self._matrices.values():
            if name in stack:
                stack.load(name, tensor)
                return
        slot, ranks = self._slots[name], self._context.collectives
        check_shape(name, tensor, slot.expected)
        part = slot.cut(tensor, ranks.rank * slot.num_pieces // ranks.size)
        kept = torch.zeros(slot.shape_on_rank, dtype=slot.expected.dtype, device=self._context.device)
        kept[: part.shape[0]].copy_(part)
        self._loaded[slot.name] = kept

    def finish(self) -> None:
        weights, self._loaded = self._loaded, {}
        absent = [name for name, slot in self._slots.items() if slot.name not in weights]
        if absent:
            raise RuntimeError(f"{absent[0]} was never loaded")
        plain = Plain(self._context.dtype)
        self.pack(weights | {slot: stack.take(plain)["weight"] for slot, stack in self._matrices.items()})
