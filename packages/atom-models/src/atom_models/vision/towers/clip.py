"""The tower of CLIP: Radford et al. 2021, https://arxiv.org/abs/2103.00020.

As that of SigLIP, but a row of its own stands before the patches of each picture, and becomes its vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.layers import LayerNorm, ReplicatedLinear, Residual
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.vision.attention import attend_within, plan_attention
from atom_models.vision.batch import PictureBatch
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionTower, unshared
from atom_models.vision.towers.siglip import SiglipBlock, SiglipVisionConfig
from atom_models.vision.towers.step import TowerStep, starts_of


@dataclass(frozen=True, kw_only=True)
class CLIPVisionConfig(SiglipVisionConfig):
    """Fields of `vision_config`. Absent ones are those of the published base model."""

    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


class LeadingRow(WeightedLayer):
    """``patches [pictures, P, hidden_size] -> [pictures, 1 + P, hidden_size]``, with the positions of all rows."""

    def __init__(self, num_patches: int, size: int, context: BuildContext, *, prefix: str) -> None:
        super().__init__(context)
        self.expect(f"{prefix}.class_embedding", (size,), slot="row")
        self.expect(f"{prefix}.position_embedding.weight", (1 + num_patches, size), slot="positions")
        self._missing = not_loaded(prefix)
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        row, positions = self._missing() if self._held is None else self._held
        return torch.cat((row.expand(len(patches), 1, -1), patches), dim=1) + positions

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._held = weights["row"], weights["positions"]


class CLIPTower(VisionTower):
    config_class = CLIPVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        size, eps, embeddings = config.hidden_size, config.layer_norm_eps, f"{prefix}.embeddings"
        self.patches = PatchEmbedding(vision.spec, size, context, prefix=f"{embeddings}.patch_embedding", bias=False)
        self.rows_of_unit = 1 + config.side**2
        self.leading = LeadingRow(config.side**2, size, context, prefix=embeddings)
        # The checkpoints spell it so.
        self.norm_before = LayerNorm(size, eps, context, prefix=f"{prefix}.pre_layrnorm")
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.layers = nn.ModuleList(
            SiglipBlock(config, context, prefix=f"{prefix}.encoder.layers.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.norm = LayerNorm(size, eps, context, prefix=f"{prefix}.post_layernorm")
        self.projection = ReplicatedLinear(
            size, config.out_hidden_size, context, prefix="visual_projection", bias=False
        )

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        rows = self.leading(self.patches(pictures).unflatten(0, (len(batch.grids), -1)))
        starts = starts_of([self.rows_of_unit] * len(rows), batch.device)
        return TowerStep(self.norm_before(rows.flatten(0, 1)), (starts,))

    def run(self, step: TowerStep) -> torch.Tensor:
        runs, residual = attend_within(self.plan, step), Residual(step.rows)
        for layer in self.layers:
            residual = layer(residual, runs)
        return self.projection(self.norm(residual.tensor()[:: self.rows_of_unit].contiguous()))
