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
    from atom_models.build_context import BuildContext


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
