"""The tower of Gemma 3: that of SigLIP, behind which the mean over a square of patches becomes a token.

Gemma Team 2025, https://arxiv.org/abs/2503.19786, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.select import select
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, RMSNorm
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.vision.reading import Vision
from atom_models.vision.tower import unshared
from atom_models.vision.towers.siglip import SiglipTower, SiglipVisionConfig
from atom_models.vision.towers.step import TowerStep

PROJECTOR = "multi_modal_projector"


@dataclass(frozen=True, kw_only=True)
class Gemma3VisionConfig(SiglipVisionConfig):
    """Fields of `vision_config`."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"vision_use_head": (False,)}


class TurnedLinear(WeightedLayer):
    """``[T, in_features] -> [T, out_features]`` of a matrix that the checkpoint has as ``[in_features, out_features]``.

    Args:
        name: what the checkpoint calls the matrix.
    """

    def __init__(self, in_features: int, out_features: int, context: BuildContext, *, name: str) -> None:
        super().__init__(context)
        self.expect(name, (in_features, out_features), slot="weight")
        self._problem = LinearProblem(in_features, out_features, context.dtype, False)
        self._apply: Callable[[torch.Tensor], torch.Tensor] = not_loaded(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._apply(x)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        matrix = {"weight": weights["weight"].t().contiguous()}
        self._apply = select(LINEAR, self._problem, self._context.platform).prepare(matrix)


class Gemma3Projector(Layer):
    """``[T, hidden_size] -> [tokens, out_hidden_size]``."""

    def __init__(self, config: Gemma3VisionConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self._shape = (-1, config.spatial_merge_size**2, size)
        self.norm = RMSNorm(size, eps, context, prefix=f"{prefix}.mm_soft_emb_norm", weight_offset=1.0)
        self.linear = TurnedLinear(size, config.out_hidden_size, context, name=f"{prefix}.mm_input_projection_weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x.view(self._shape).mean(dim=1)))


class Gemma3Tower(SiglipTower):
    config_class = Gemma3VisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context, prefix=f"{prefix}.vision_model")
        self.projector = Gemma3Projector(self.config, unshared(context), prefix=PROJECTOR)

    def run(self, step: TowerStep) -> torch.Tensor:
        return self.projector(self.states(step))
