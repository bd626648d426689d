"""Cosines and sines of transformers' rotary modules, as the tables from which our kernels rotate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import nn

# Positions whose angles are worked out at once.
_CHUNK = 4096
# float32 [positions, R], cosines in the first half, for each layout in which the angles lie.
_Tables = Mapping["AngleLayout", torch.Tensor]


class AngleLayout(Enum):
    """How a row has each of its angles twice: as two halves, or in pairs."""

    HALVES = "halves"
    PAIRS = "pairs"

    def twice(self, angles: torch.Tensor) -> torch.Tensor:
        """``[..., R / 2]`` -> ``[..., R]``."""
        return torch.cat((angles, angles), -1) if self is AngleLayout.HALVES else angles.repeat_interleave(2, -1)

    def once(self, twice: torch.Tensor) -> torch.Tensor:
        """``[..., R]`` -> ``[..., R / 2]``."""
        return twice[..., : twice.shape[-1] // 2] if self is AngleLayout.HALVES else twice[..., ::2]


class StepAngles(Sequence[torch.Tensor]):
    """Cosines and sines of a step's tokens, worked out for those layers alone that unpack them.

    Attributes:
        positions: int64 ``[T]``.
        tables: what others rotate from.
    """

    def __init__(self, positions: torch.Tensor, tables: _Tables, work_out: Callable[[], Any]) -> None:
        self.positions, self.tables, self._work_out = positions, tables, work_out
        self._pair: Any = None

    def __getitem__(self, index: Any) -> Any:
        if self._pair is None:
            self._pair = self._work_out()
        return self._pair[index]

    def __len__(self) -> int:
        return 2


class AngleTables:
    """Stands for the `forward` of a rotary module, whose angles it works out by it for all positions once.

    Args:
        num_positions: how many positions there are.
    """

    def __init__(self, module: nn.Module, num_positions: int) -> None:
        self._theirs, self._num_positions = module.forward, num_positions
        # By what else the module is told, such as a kind of layers; None where no table holds what it gives.
        self._tables: dict[Any, _Tables | None] = {}

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, *rest: Any, **given: Any) -> Any:
        """What the module gives, of int64 ``[1, T]`` positions as `StepAngles`."""
        work_out = partial(self._theirs, x, position_ids, *rest, **given)
        if position_ids.dim() != 2 or len(position_ids) != 1:
            return work_out()
        kind = (x.dtype, rest, *given.items())
        if kind not in self._tables:
            self._tables[kind] = self._make(lambda positions: self._theirs(x, positions, *rest, **given))
        tables = self._tables[kind]
        return work_out() if tables is None else StepAngles(position_ids[0], tables, work_out)

    def _make(self, angles_at: Callable[[torch.Tensor], Any]) -> _Tables | None:
        chunks = torch.arange(self._num_positions)[None].split(_CHUNK, -1)
        pairs = [angles_at(chunk) for chunk in chunks]
        if not all(map(_is_pair, pairs)):
            return None
        # Rows must follow from their own positions, whichever stand beside them.
        for chunk, pair in zip(chunks, pairs, strict=True):
            if not all(map(torch.equal, angles_at(chunk.flip(-1)), [one.flip(1) for one in pair])):
                return None
        cos_sin = [torch.cat(ones, 1)[0] for ones in zip(*pairs, strict=True)]
        return {
            layout: torch.cat([layout.once(one) for one in cos_sin], -1).float()
            for layout in AngleLayout
            if all(torch.equal(layout.twice(layout.once(one)), one) for one in cos_sin)
        }


def is_rotary(module: nn.Module) -> bool:
    """Whether a module without weights is asked for something of positions, as rotary ones are."""
    has_parts = module._modules or module._parameters
    return not has_parts and [*inspect.signature(module.forward).parameters][1:2] == ["position_ids"]


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and [one.dim() for one in given] == [3, 3] and given[0].shape[-1] % 2 == 0
