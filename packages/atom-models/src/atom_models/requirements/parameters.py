"""How many weights a model has, and of which kinds: counted over its layers before they are loaded."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from atom_kernels.formats import WeightFormat, num_bytes
from atom_models.layers.loadable import loadable
from atom_models.quantization import ONLINE
from atom_models.vision.sees import num_tower_weights

# All formats that are asked for by name round the matrices of the same layers.
_ASKED = ONLINE["int8"]


@dataclass
class Count:
    """Numbers of weights that one rank holds; the parts overlap, and tied tables count once.

    Attributes:
        parameters: all of them.
        rounded: shapes of the matrices that are rounded while loading where that is asked for, those of experts one by
            one.
        idle: weights of experts that a token does not choose, with their biases, and those of a tower.
        stored_bytes: the bytes of all in the number formats of the checkpoint, see `RankWeight`.
    """

    parameters: int = 0
    rounded: Counter[tuple[int, ...]] = field(default_factory=Counter)
    idle: int = 0
    stored_bytes: int = 0

    @property
    def num_rounded(self) -> int:
        return sum(math.prod(shape) * count for shape, count in self.rounded.items())

    def bytes_rounded_to(self, weight_format: WeightFormat) -> int:
        """The bytes of all weights, where those that are not rounded have 16 bits."""
        rounded = sum(num_bytes(weight_format, *shape) * count for shape, count in self.rounded.items())
        return 2 * (self.parameters - self.num_rounded) + rounded


def count_parameters(model: nn.Module) -> Count:
    """Counts the weights of one rank's model."""
    count = Count(idle=num_tower_weights(model))
    for weights in (weights for layer in loadable(model) for weights in layer.weights()):
        count.parameters += weights.num_numbers
        count.idle += weights.num_idle
        count.stored_bytes += sum(one.stored_bytes for one in weights.on_rank)
        if weights.packed_on is not None and not _ASKED.skips(weights.names[0]):
            for one in weights.on_rank:
                if len(one.shape) == 2:
                    count.rounded[one.shape] += one.count
    return count
