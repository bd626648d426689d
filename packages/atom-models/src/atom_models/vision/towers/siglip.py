"""The tower of SigLIP: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

A transformer over patches with learned positions, for pictures of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_kernels.mixers import MixerPlan
from atom_models.build_context import BuildContext
from atom_models.layers import LayerNorm, Residual, UngatedMLP
from atom_models.vision.attention import PictureAttention, attend_within, plan_attention
from atom_models.vision.batch import PictureBatch
from atom_models.vision.blocks import PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.qwen3_vl import LearnedPositions
from atom_models.vision.towers.step import TowerStep, starts_of


@dataclass(frozen=True, kw_only=True)
class SiglipVisionConfig(VisionConfig):
    """Fields of `vision_config`. Absent ones are those of the published base model."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"num_channels": (3,)}

    depth: int = field(default=12, metadata={"also": ("num_hidden_layers",)})
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_heads: int = field(default=12, metadata={"also": ("num_attention_heads",)})
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    image_size: int

    @property
    def side(self) -> int:
        """Rows and columns of patches."""
        return self.image_size // self.patch_size


class SiglipBlock(PictureBlock):
    """As CLIP has it, too."""

    def __init__(self, config: SiglipVisionConfig, context: BuildContext, *, prefix: str, plan: MixerPlan) -> None:
        size, eps = config.hidden_size, config.layer_norm_eps
        super().__init__(
            LayerNorm(size, eps, context, prefix=f"{prefix}.layer_norm1"),
            PictureAttention.split(plan, size, context, prefix=f"{prefix}.self_attn", proj="out_proj", bias=True),
            LayerNorm(size, eps, context, prefix=f"{prefix}.layer_norm2"),
            UngatedMLP(
                *(size, config.intermediate_size, config.hidden_act),
                context=context, prefix=f"{prefix}.mlp", up="fc1", down="fc2", bias=True,
            ),
        )  # fmt: skip


class SiglipTower(VisionTower):
    """What all towers of SigLIP have; what follows the last norm is the model's own.

    Args:
        prefix: what names of its weights begin with.
    """

    config_class = SiglipVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        size, embeddings = config.hidden_size, f"{prefix}.embeddings"
        self.patches = PatchEmbedding(vision.spec, size, context, prefix=f"{embeddings}.patch_embedding", bias=True)
        self.positions = LearnedPositions(
            config.side, size, context, prefix=f"{embeddings}.position_embedding", stored_as=(config.side**2,)
        )
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.layers = nn.ModuleList(
            SiglipBlock(config, context, prefix=f"{prefix}.encoder.layers.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.norm = LayerNorm(size, config.layer_norm_eps, context, prefix=f"{prefix}.post_layernorm")

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        return TowerStep(self.patches(pictures) + self.positions(batch), (starts_of(batch.lengths, batch.device),))

    def states(self, step: TowerStep) -> torch.Tensor:
        """``[T, hidden_size]`` of the patches of all pictures."""
        runs, residual = attend_within(self.plan, step), Residual(step.rows)
        for layer in self.layers:
            residual = layer(residual, runs)
        return self.norm(residual)
