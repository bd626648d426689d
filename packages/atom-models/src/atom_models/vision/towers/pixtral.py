"""The tower of Pixtral with the projector of Mistral 3: Agrawal et al. 2024, https://arxiv.org/abs/2410.07073.

A transformer over patches as Llama's, that sees all of a picture and turns by row and column in frequencies of their
own. Patches are merged behind it: four become one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_kernels.mixers import MixerPlan
from atom_models.build_context import BuildContext
from atom_models.layers import (
    Layer,
    ReplicatedLinear,
    Residual,
    RMSNorm,
    UngatedActivation,
)
from atom_models.vision.attention import PictureAttention, attend_within, plan_attention
from atom_models.vision.batch import PictureBatch, as_table
from atom_models.vision.blocks import GatedPictureMLP, PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.step import TowerStep, starts_of

_EPS = 1e-5
PROJECTOR = "multi_modal_projector"


@dataclass(frozen=True, kw_only=True)
class PixtralVisionConfig(VisionConfig):
    """Fields of `vision_config`, and of the projector."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"num_channels": (3,), "vision_feature_layer": (-1,)}

    depth: int = field(default=24, metadata={"also": ("num_hidden_layers",)})
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_heads: int = field(default=16, metadata={"also": ("num_attention_heads",)})
    head_dim: int | None = None
    hidden_act: str = "gelu"
    projector_hidden_act: str = "gelu"
    projector_norm_eps: float = 1e-6
    multimodal_projector_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim not in (None, self.head_size):
            raise ValueError(
                f"vision_config: head_dim is {self.head_dim}; hidden_size is {self.hidden_size}, of which each of "
                f"{self.num_heads} heads has {self.head_size}"
            )


class PixtralBlock(PictureBlock):
    def __init__(self, config: PixtralVisionConfig, context: BuildContext, *, prefix: str, plan: MixerPlan) -> None:
        size, inner, activation = config.hidden_size, config.intermediate_size, config.hidden_act
        super().__init__(
            RMSNorm(size, _EPS, context, prefix=f"{prefix}.attention_norm"),
            PictureAttention.split(plan, size, context, prefix=f"{prefix}.attention", proj="o_proj", bias=False),
            RMSNorm(size, _EPS, context, prefix=f"{prefix}.ffn_norm"),
            GatedPictureMLP(size, inner, activation, context, prefix=f"{prefix}.feed_forward", bias=False),
        )


class Mistral3Projector(Layer):
    """``[T, hidden_size] -> [tokens, out_hidden_size]``."""

    def __init__(self, config: PixtralVisionConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size, out = config.hidden_size, config.out_hidden_size
        self._shape, bias = (-1, config.spatial_merge_size**2, size), config.multimodal_projector_bias
        self.norm = RMSNorm(size, config.projector_norm_eps, context, prefix=f"{prefix}.norm")
        self.merging = ReplicatedLinear(
            config.merged_size, size, context, prefix=f"{prefix}.patch_merger.merging_layer"
        )
        self.linear_1 = ReplicatedLinear(size, out, context, prefix=f"{prefix}.linear_1", bias=bias)
        self.act = UngatedActivation(config.projector_hidden_act, out, context)
        self.linear_2 = ReplicatedLinear(out, out, context, prefix=f"{prefix}.linear_2", bias=bias)

    def forward(self, residual: Residual) -> torch.Tensor:
        # An element of all patches of a token stands before the next element.
        squares = self.norm(residual).view(self._shape).transpose(1, 2).flatten(1)
        return self.linear_2(self.act(self.linear_1(self.merging(squares))))


class PixtralTower(VisionTower):
    config_class = PixtralVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        self.patch_conv = PatchEmbedding(
            vision.spec, config.hidden_size, context, prefix=f"{prefix}.patch_conv", bias=False
        )
        self.ln_pre = RMSNorm(config.hidden_size, _EPS, context, prefix=f"{prefix}.ln_pre")
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.layers = nn.ModuleList(
            PixtralBlock(config, context, prefix=f"{prefix}.transformer.layers.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.projector = Mistral3Projector(config, context, prefix=PROJECTOR)

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        config, starts = self.config, starts_of(batch.lengths, batch.device)
        turned = axial_angles(batch, config.head_size, config.rope_theta)
        return TowerStep(self.ln_pre(self.patch_conv(pictures)), (starts,), turned)

    def run(self, step: TowerStep) -> torch.Tensor:
        runs, residual = attend_within(self.plan, step), Residual(step.rows)
        for layer in self.layers:
            residual = layer(residual, runs)
        return self.projector(residual)


def axial_angles(batch: PictureBatch, head_dim: int, theta: float) -> torch.Tensor:
    """As `angles`; every other frequency turns by the row, and those between them by the column."""
    steps = torch.arange(0, head_dim, 2, device=batch.device, dtype=torch.float32) / head_dim
    frequencies = theta ** -steps.view(-1, 2).T
    return as_table((batch.rows_and_columns.unsqueeze(-1) * frequencies).flatten(1))
