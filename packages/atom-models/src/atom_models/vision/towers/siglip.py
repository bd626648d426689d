"""The tower of SigLIP with the projector of Gemma 3: Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

A transformer over patches with learned positions, for pictures of one size. Behind it the mean over a square of patches
becomes a token: Gemma Team 2025, https://arxiv.org/abs/2503.19786, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.mixers import MixerPlan
from atom_kernels.select import select
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, LayerNorm, Residual, RMSNorm, UngatedMLP
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.vision.attention import PictureAttention, attend_within, plan_attention
from atom_models.vision.batch import PictureBatch
from atom_models.vision.blocks import PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.qwen3_vl import LearnedPositions

PROJECTOR = "multi_modal_projector"


@dataclass(frozen=True, kw_only=True)
class SiglipVisionConfig(VisionConfig):
    """Fields of `vision_config`."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"num_channels": (3,), "vision_use_head": (False,)}

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

    def __init__(self, config: SiglipVisionConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self._shape = (-1, config.spatial_merge_size**2, size)
        self.norm = RMSNorm(size, eps, context, prefix=f"{prefix}.mm_soft_emb_norm", weight_offset=1.0)
        self.linear = TurnedLinear(size, config.out_hidden_size, context, name=f"{prefix}.mm_input_projection_weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x.view(self._shape).mean(dim=1)))


class SiglipTower(VisionTower):
    config_class = SiglipVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        size, prefix = config.hidden_size, f"{prefix}.vision_model"
        embeddings = f"{prefix}.embeddings"
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
        self.projector = Gemma3Projector(config, context, prefix=PROJECTOR)

    def forward(self, pictures: Sequence[torch.Tensor], batch: PictureBatch) -> torch.Tensor:
        runs = attend_within(self.plan, batch.lengths, device=batch.device)
        residual = Residual(self.patches(pictures) + self.positions(batch))
        for layer in self.layers:
            residual = layer(residual, runs)
        return self.projector(self.norm(residual))
