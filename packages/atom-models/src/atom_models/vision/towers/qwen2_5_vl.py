"""The tower of Qwen2.5-VL: Bai et al. 2025, https://arxiv.org/abs/2502.13923.

A transformer over patches with RMS norms, gated MLPs and a rotation by row and column. In most layers a patch sees its
window alone. Four patches become one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from atom_models.vision.batch import PictureBatch, angles
from atom_models.vision.blocks import GatedPictureMLP, PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.step import TowerStep, starts_of

_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Qwen2_5VLVisionConfig(VisionConfig):
    """Fields of `vision_config`; a window has `window_size` pixels on each side."""

    depth: int = 32
    hidden_size: int = 1280
    intermediate_size: int = 3420
    num_heads: int = 16
    patch_size: int = 14
    hidden_act: str = "silu"
    window_size: int = 112
    fullatt_block_indexes: Sequence[int] = (7, 15, 23, 31)

    @property
    def window_side(self) -> int:
        """Tokens on each side of a window."""
        return self.window_size // self.spatial_merge_size // self.patch_size


class Qwen2_5VLVisionBlock(PictureBlock):
    def __init__(self, config: Qwen2_5VLVisionConfig, context: BuildContext, *, prefix: str, plan: MixerPlan) -> None:
        size, inner, activation = config.hidden_size, config.intermediate_size, config.hidden_act
        super().__init__(
            RMSNorm(size, _EPS, context, prefix=f"{prefix}.norm1"),
            PictureAttention.fused(plan, size, context, prefix=f"{prefix}.attn"),
            RMSNorm(size, _EPS, context, prefix=f"{prefix}.norm2"),
            GatedPictureMLP(size, inner, activation, context, prefix=f"{prefix}.mlp", bias=True),
        )


class Qwen2_5VLPatchMerger(Layer):
    """``[T, hidden_size] -> [tokens, out_hidden_size]``."""

    def __init__(self, config: Qwen2_5VLVisionConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = self._size = config.merged_size
        self.norm = RMSNorm(config.hidden_size, _EPS, context, prefix=f"{prefix}.ln_q")
        self.up = ReplicatedLinear(size, size, context, prefix=f"{prefix}.mlp.0", bias=True)
        self.act = UngatedActivation("gelu", size, context)
        self.down = ReplicatedLinear(size, config.out_hidden_size, context, prefix=f"{prefix}.mlp.2", bias=True)

    def forward(self, residual: Residual) -> torch.Tensor:
        return self.down(self.act(self.up(self.norm(residual).view(-1, self._size))))


class Qwen2_5VLVisionTower(VisionTower):
    config_class = Qwen2_5VLVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        if config.window_side < 1:
            raise ValueError(
                f"vision_config: window_size is {config.window_size}, less than a token's {vision.spec.unit}"
            )
        self.patch_embed = PatchEmbedding(
            vision.spec,
            config.hidden_size,
            context,
            prefix=f"{prefix}.patch_embed.proj",
            num_frames=config.temporal_patch_size,
            bias=False,
        )
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.blocks = nn.ModuleList(
            Qwen2_5VLVisionBlock(config, context, prefix=f"{prefix}.blocks.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.merger = Qwen2_5VLPatchMerger(config, context, prefix=f"{prefix}.merger")

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        """All of it is in the order of windows, so that each is a run of rows."""
        config, (order, window_lengths) = self.config, batch.windows(self.config.window_side)
        turned = batch.by_tokens(angles(batch, config.head_size, config.rope_theta), order)
        starts = (starts_of(batch.lengths, batch.device), starts_of(window_lengths, batch.device))
        return TowerStep(batch.by_tokens(self.patch_embed(pictures), order), starts, turned)

    def run(self, step: TowerStep) -> torch.Tensor:
        within_pictures, within_windows = (attend_within(self.plan, step, kind=kind) for kind in (0, 1))
        residual = Residual(step.rows)
        for layer_id, block in enumerate(self.blocks):
            runs = within_pictures if layer_id in self.config.fullatt_block_indexes else within_windows
            residual = block(residual, runs)
        return self.merger(residual)

    def end(self, features: torch.Tensor, batch: PictureBatch) -> torch.Tensor:
        order, _ = batch.windows(self.config.window_side)
        return features[order.argsort()]
