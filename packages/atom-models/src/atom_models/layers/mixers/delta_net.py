"""A delta net as a layer: raw queries, keys and values in; convolution, decay and the delta rule as one mixer.

Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", https://arxiv.org/abs/2412.06464.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from atom_kernels.delta import DeltaNetProblem
from atom_models.layers.mixers.mixer import Mixer

if TYPE_CHECKING:
    from atom_kernels.operator import WeightSpec
    from atom_models.build_context import BuildContext

# In the order of the channels.
_PARTS = ("q", "k", "v")


class DeltaNet(Mixer):
    """``forward(qkv, a, b) -> [T, num_value_heads * value_dim]``, over one state a request.

    qkv is ``[T, channels]``: all queries, all keys, all values. a and b make decays and betas. Ranks share key heads,
    and with each the value heads that read it.

    Args:
        problem: what this rank computes.
        prefix: the layer's name, by which hosts know its states.
    """

    problem: DeltaNetProblem
    other_names = MappingProxyType({"conv": "conv1d.weight", "a_log": "A_log"})

    def __init__(self, problem: DeltaNetProblem, *, context: BuildContext, prefix: str) -> None:
        super().__init__(problem, prefix=prefix, context=context)

    def expect_weight(self, parent: str, slot: str, spec: WeightSpec) -> None:
        if slot != "conv":
            super().expect_weight(parent, slot, spec)
            return
        num_ranks = self._context.collectives.size
        parts = tuple(part * num_ranks for part in self.problem.parts)
        name, shape = f"{parent}.{self.other_names[slot]}", (sum(parts), *spec.shape[1:])
        self.expect(name, shape, slot=slot, dtype=spec.dtype, num_pieces=num_ranks, parts=parts)

    def mix(self, qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self._host.mix((qkv, a, b), None).view(qkv.shape[0], -1)


class ChannelDeltaNet(DeltaNet):
    """A delta net of Kimi-Linear, whose checkpoints hold the filters of queries, keys and values apart."""

    def expect_weight(self, parent: str, slot: str, spec: WeightSpec) -> None:
        num_ranks = self._context.collectives.size
        if slot == "conv":
            for part, size in zip(_PARTS, self.problem.parts, strict=True):
                name, shape = f"{parent}.{part}_conv1d.weight", (size * num_ranks, *spec.shape[1:])
                self.expect(name, shape, slot=part, dtype=spec.dtype, num_pieces=num_ranks)
        elif slot == "a_log":
            shape = (1, 1, spec.shape[0] * num_ranks, 1)
            self.expect(f"{parent}.A_log", shape, slot=slot, dtype=spec.dtype)
        else:
            super().expect_weight(parent, slot, spec)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        conv, ranks = torch.cat([weights.pop(part) for part in _PARTS]), self._context.collectives
        # Heads are not its first dimension, so all ranks have all of them.
        a_log = weights["a_log"].flatten().chunk(ranks.size)[ranks.rank].clone()
        super().pack(weights | {"conv": conv, "a_log": a_log})
