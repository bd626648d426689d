"""The scheme of weights that stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from atom_kernels.linear import OP, LinearProblem
from atom_kernels.select import select
from atom_models.quantization.scheme import DENSE_INPUT, DenseInput, LinearSpec, WeightSlot, dense_slots


@dataclass(frozen=True)
class Dense:
    """Weights in the model's dtype, packed as the platform likes them."""

    name: str = "dense"
    input_format: DenseInput = DENSE_INPUT
    ignored_weights: tuple[str, ...] = ()

    def create_weights(self, spec: LinearSpec) -> Mapping[str, WeightSlot]:
        return dense_slots(spec)

    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        problem = LinearProblem(spec.in_features, spec.out_features, spec.dtype, spec.bias)
        return select(OP, problem, spec.platform).prepare(weights)
