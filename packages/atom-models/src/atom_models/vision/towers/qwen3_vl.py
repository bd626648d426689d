"""The tower of Qwen3-VL and of Qwen3.5: Bai et al. 2025, https://arxiv.org/abs/2511.21631.

A transformer over patches that has learned positions, stretched over each picture, beside a rotation by row and column.
Four patches become one token. DeepStack (Meng et al. 2024, https://arxiv.org/abs/2406.04334): tokens that are made
behind some of its layers are added behind the first layers of the language model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom_kernels.mixers import MixerPlan
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, LayerNorm, ReplicatedLinear, Residual, UngatedActivation, UngatedMLP
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.vision.attention import PictureAttention, attend_within, plan_attention
from atom_models.vision.batch import PictureBatch, angles
from atom_models.vision.blocks import PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.step import TowerStep, starts_of

_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Qwen3VLVisionConfig(VisionConfig):
    """Fields of `vision_config`; `num_position_embeddings` is the number of places of a square table."""

    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: Sequence[int] = (8, 16, 24)

    @property
    def side(self) -> int:
        """Rows and columns of the table of positions."""
        return math.isqrt(self.num_position_embeddings)


@dataclass(frozen=True, kw_only=True)
class Qwen3_5VisionConfig(Qwen3VLVisionConfig):
    """Without DeepStack where the config does not ask for it."""

    deepstack_visual_indexes: Sequence[int] = ()


class LearnedPositions(WeightedLayer):
    """``forward(batch) -> [T, hidden_size]``: a square table of positions, stretched over each picture (bilinear).

    Args:
        side: rows and columns of the table.
        stored_as: the shape of its places in the checkpoint.
    """

    def __init__(
        self, side: int, hidden_size: int, context: BuildContext, *, prefix: str, stored_as: tuple[int, ...]
    ) -> None:
        super().__init__(context)
        self._side = side
        self.expect(f"{prefix}.weight", (*stored_as, hidden_size))
        self._table: torch.Tensor | None = None
        self._missing = not_loaded(prefix)

    def forward(self, batch: PictureBatch) -> torch.Tensor:
        table = self._missing() if self._table is None else self._table
        rows, columns = (self.neighbors(batch, axis) for axis in (0, 1))
        total = torch.zeros(sum(batch.lengths), table.shape[1], device=table.device)
        for row, row_weight in rows:
            for column, column_weight in columns:
                weight = (row_weight * column_weight).unsqueeze(1)
                total.addcmul_(table[row * self._side + column].float(), weight)
        return total.to(table.dtype)

    def neighbors(self, batch: PictureBatch, axis: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The places of the table between which each patch lies on an axis, with their weights. Corners meet."""
        last = self._side - 1
        place = batch.rows_and_columns[:, axis].float() * last / (batch.sizes(axis) - 1).clamp(min=1)
        below = place.floor()
        beyond = place - below
        return [(below.long(), 1 - beyond), ((below.long() + 1).clamp(max=last), beyond)]

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._table = weights["weight"].flatten(end_dim=-2)


class Qwen3VLVisionBlock(PictureBlock):
    def __init__(self, config: Qwen3VLVisionConfig, context: BuildContext, *, prefix: str, plan: MixerPlan) -> None:
        size, mlp = config.hidden_size, f"{prefix}.mlp"
        super().__init__(
            LayerNorm(size, _EPS, context, prefix=f"{prefix}.norm1"),
            PictureAttention.fused(plan, size, context, prefix=f"{prefix}.attn"),
            LayerNorm(size, _EPS, context, prefix=f"{prefix}.norm2"),
            UngatedMLP(
                *(size, config.intermediate_size, config.hidden_act),
                context=context, prefix=mlp, up="linear_fc1", down="linear_fc2", bias=True,
            ),
        )  # fmt: skip


class Qwen3VLPatchMerger(Layer):
    """``[T, hidden_size] -> [tokens, out_hidden_size]``; a token is normed as one where DeepStack makes it."""

    def __init__(
        self, config: Qwen3VLVisionConfig, context: BuildContext, *, prefix: str, norms_tokens: bool = False
    ) -> None:
        super().__init__()
        size = self._size = config.merged_size
        self._normed_size = size if norms_tokens else config.hidden_size
        self.norm = LayerNorm(self._normed_size, _EPS, context, prefix=f"{prefix}.norm")
        self.fc1 = ReplicatedLinear(size, size, context, prefix=f"{prefix}.linear_fc1", bias=True)
        self.act = UngatedActivation("gelu", size, context)
        self.fc2 = ReplicatedLinear(size, config.out_hidden_size, context, prefix=f"{prefix}.linear_fc2", bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.view(-1, self._normed_size)).view(-1, self._size)
        return self.fc2(self.act(self.fc1(normed)))


class Qwen3VLVisionTower(VisionTower):
    config_class = Qwen3VLVisionConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        outside = [layer_id for layer_id in config.deepstack_visual_indexes if not 0 <= layer_id < config.depth]
        if outside:
            raise ValueError(f"vision_config: deepstack_visual_indexes has {outside[0]}; depth is {config.depth}")
        self.patch_embed = PatchEmbedding(
            vision.spec,
            config.hidden_size,
            context,
            prefix=f"{prefix}.patch_embed.proj",
            num_frames=config.temporal_patch_size,
            bias=True,
        )
        self.pos_embed = LearnedPositions(
            config.side,
            config.hidden_size,
            context,
            prefix=f"{prefix}.pos_embed",
            stored_as=(config.num_position_embeddings,),
        )
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.blocks = nn.ModuleList(
            Qwen3VLVisionBlock(config, context, prefix=f"{prefix}.blocks.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.merger = Qwen3VLPatchMerger(config, context, prefix=f"{prefix}.merger")
        self.deepstack_mergers = nn.ModuleList(
            Qwen3VLPatchMerger(config, context, prefix=f"{prefix}.deepstack_merger_list.{index}", norms_tokens=True)
            for index in range(len(config.deepstack_visual_indexes))
        )
        self.width *= 1 + len(config.deepstack_visual_indexes)

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        config, starts = self.config, starts_of(batch.lengths, batch.device)
        turned = angles(batch, config.head_size, config.rope_theta)
        return TowerStep(self.patch_embed(pictures) + self.pos_embed(batch), (starts,), turned)

    def run(self, step: TowerStep) -> torch.Tensor:
        config, runs, residual = self.config, attend_within(self.plan, step), Residual(step.rows)
        behind: dict[int, torch.Tensor] = {}
        for layer_id, block in enumerate(self.blocks):
            residual = block(residual, runs)
            if layer_id in config.deepstack_visual_indexes:
                behind[layer_id] = residual.tensor()
        added = zip(config.deepstack_visual_indexes, self.deepstack_mergers, strict=True)
        merged = [merger(behind[layer_id]) for layer_id, merger in added]
        return torch.cat([self.merger(residual.tensor()), *merged], dim=1)


class Qwen3_5VisionTower(Qwen3VLVisionTower):
    config_class = Qwen3_5VisionConfig
