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

    qkv is ``[T, channels]``: all queries, all keys, all values. a and b make decays and betas.

    Args:
        problem: what the whole layer computes.
        prefix: the layer's name, by which hosts know its states.

    Raises:
        ValueError: there are several ranks.
    """

    stored = MappingProxyType({"conv": "conv1d.weight", "a_log": "A_log"})

    def __init__(self, problem: DeltaNetProblem, *, context: BuildContext, prefix: str) -> None:
        if context.collectives.size > 1:
            raise ValueError(
                f"{prefix}: {context.collectives.size} tensor-parallel ranks cannot share a delta net in this version: "
                "give tensor_parallel_size 1"
            )
        super().__init__(problem, prefix=prefix, context=context)

    def mix(self, qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self._host.mix((qkv, a, b), None).view(qkv.shape[0], -1)


class ChannelDeltaNet(DeltaNet):
    """A delta net of Kimi-Linear, whose checkpoints hold the filters of queries, keys and values apart."""

    def expect_weight(self, parent: str, slot: str, spec: WeightSpec) -> None:
        if slot == "conv":
            third = (spec.shape[0] // 3, *spec.shape[1:])
            for part in _PARTS:
                self.expect(f"{parent}.{part}_conv1d.weight", third, slot=part, dtype=spec.dtype)
        elif slot == "a_log":
            self.expect(f"{parent}.A_log", (1, 1, *spec.shape, 1), slot=slot, dtype=spec.dtype)
        else:
            super().expect_weight(parent, slot, spec)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        conv = torch.cat([weights.pop(part) for part in _PARTS])
        super().pack(weights | {"conv": conv, "a_log": weights["a_log"].flatten()})
