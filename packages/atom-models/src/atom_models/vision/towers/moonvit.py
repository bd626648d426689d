"""MoonViT, the tower of Kimi-K2.5: Kimi Team 2025 and 2026, https://arxiv.org/abs/2504.07491.

A transformer over patches that has learned positions, stretched over each picture, beside a rotation by column and row
in turn. Four patches become one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_kernels.mixers import MixerPlan
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, LayerNorm, ReplicatedLinear, Residual, UngatedActivation, UngatedMLP
from atom_models.vision.attention import PictureAttention, attend_within, plan_attention
from atom_models.vision.batch import PictureBatch, as_table
from atom_models.vision.blocks import PictureBlock
from atom_models.vision.patches import PatchEmbedding
from atom_models.vision.reading import Vision
from atom_models.vision.tower import VisionConfig, VisionTower, unshared
from atom_models.vision.towers.qwen3_vl import LearnedPositions
from atom_models.vision.towers.step import TowerStep, starts_of

_EPS = 1e-5
PROJECTOR = "mm_projector"


def _also(default: Any, *names: str) -> Any:
    return field(default=default, metadata={"also": names})


@dataclass(frozen=True, kw_only=True)
class MoonViTConfig(VisionConfig):
    """Fields of `vision_config` in the publisher's spelling and that of transformers, and of the projector."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "merge_type": ("sd2_tpool",),
        "mm_projector_type": ("patchmerger",),
        "norm_type": ("layernorm",),
        "pos_emb_interpolation_mode": ("bicubic",),
        "pos_emb_type": ("divided_fixed",),
    }

    depth: int = _also(27, "vt_num_hidden_layers", "num_hidden_layers")
    hidden_size: int = _also(1152, "vt_hidden_size")
    intermediate_size: int = _also(4304, "vt_intermediate_size")
    num_heads: int = _also(16, "vt_num_attention_heads", "num_attention_heads")
    patch_size: int = 14
    hidden_act: str = "gelu_pytorch_tanh"
    init_pos_emb_height: int = _also(64, "pos_emb_height")
    init_pos_emb_width: int = _also(64, "pos_emb_width")
    mm_hidden_size: int | None = None
    projector_hidden_act: str = "gelu"
    projector_ln_eps: float = _also(1e-5, "projection_layer_norm_eps")

    def __post_init__(self) -> None:
        super().__post_init__()
        # Readers of the publisher's config put the size of the text in its place.
        if self.mm_hidden_size not in (None, self.hidden_size, self.out_hidden_size):
            raise ValueError(
                f"vision_config: mm_hidden_size is {self.mm_hidden_size}, and the tower gives {self.hidden_size}"
            )
        if self.init_pos_emb_height != self.init_pos_emb_width:
            raise ValueError(
                f"vision_config: the table of positions has {self.init_pos_emb_height} rows and "
                f"{self.init_pos_emb_width} columns; it must have as many of both"
            )


class BicubicPositions(LearnedPositions):
    """As its parent, by cubic curves (Keys 1981, a = -0.75); the middles of patches and of places are matched."""

    def neighbors(self, batch: PictureBatch, axis: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        middle = batch.rows_and_columns[:, axis].float() + 0.5
        place = middle * self._side / batch.sizes(axis) - 0.5
        below = place.floor()
        beyond = place - below
        return [
            ((below.long() + step).clamp(0, self._side - 1), _cubic((beyond - step).abs())) for step in (-1, 0, 1, 2)
        ]


def _cubic(distance: torch.Tensor, a: float = -0.75) -> torch.Tensor:
    """The weight of a place that is so far away, up to 2."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance <= 1, near, far)


class MoonViTBlock(PictureBlock):
    def __init__(self, config: MoonViTConfig, context: BuildContext, *, prefix: str, plan: MixerPlan) -> None:
        size, mlp = config.hidden_size, f"{prefix}.mlp"
        super().__init__(
            LayerNorm(size, _EPS, context, prefix=f"{prefix}.norm0"),
            PictureAttention.fused(plan, size, context, prefix=prefix, qkv="wqkv", proj="wo"),
            LayerNorm(size, _EPS, context, prefix=f"{prefix}.norm1"),
            UngatedMLP(
                *(size, config.intermediate_size, config.hidden_act),
                context=context, prefix=mlp, up="fc0", down="fc1", bias=True,
            ),
        )  # fmt: skip


class KimiProjector(Layer):
    """``[T, hidden_size] -> [tokens, out_hidden_size]``."""

    def __init__(self, config: MoonViTConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = self._size = config.merged_size
        self.pre_norm = LayerNorm(config.hidden_size, config.projector_ln_eps, context, prefix=f"{prefix}.pre_norm")
        self.up = ReplicatedLinear(size, size, context, prefix=f"{prefix}.proj.0", bias=True)
        self.act = UngatedActivation(config.projector_hidden_act, size, context)
        self.down = ReplicatedLinear(size, config.out_hidden_size, context, prefix=f"{prefix}.proj.2", bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(self.pre_norm(x).view(-1, self._size))))


class MoonViTTower(VisionTower):
    config_class = MoonViTConfig

    def __init__(self, vision: Vision, context: BuildContext, *, prefix: str) -> None:
        super().__init__(vision, context)
        config, context = self.config, unshared(context)
        size, side = config.hidden_size, config.init_pos_emb_height
        patches, encoder = f"{prefix}.patch_embed", f"{prefix}.encoder"
        self.patch_embed = PatchEmbedding(vision.spec, size, context, prefix=f"{patches}.proj", bias=True)
        self.pos_emb = BicubicPositions(side, size, context, prefix=f"{patches}.pos_emb", stored_as=(side, side))
        self.plan = plan_attention(config.num_heads, config.head_size, context)
        self.blocks = nn.ModuleList(
            MoonViTBlock(config, context, prefix=f"{encoder}.blocks.{layer_id}", plan=self.plan)
            for layer_id in range(config.depth)
        )
        self.final_layernorm = LayerNorm(size, _EPS, context, prefix=f"{encoder}.final_layernorm")
        self.projector = KimiProjector(config, context, prefix=PROJECTOR)

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        config, starts = self.config, starts_of(batch.lengths, batch.device)
        turned = angles_in_turn(batch, config.head_size, config.rope_theta)
        embedded = self.patch_embed(pictures) + self.pos_emb(batch)
        if batch.frames:
            embedded += torch.cat([at_times(frames) for frames in batch.by_frames(embedded)])
        return TowerStep(embedded, (starts,), turned)

    def run(self, step: TowerStep) -> torch.Tensor:
        runs, residual = attend_within(self.plan, step, interleaved=True), Residual(step.rows)
        for block in self.blocks:
            residual = block(residual, runs)
        return self.final_layernorm(residual)

    def end(self, features: torch.Tensor, batch: PictureBatch) -> torch.Tensor:
        if batch.frames:
            features = torch.cat([frames.mean(0) for frames in batch.by_frames(features)])
        return self.projector(features)


def at_times(frames: torch.Tensor) -> torch.Tensor:
    """What the patches of ``[frames, patches of one, size]`` have of the times of their frames: ``[T, size]``.

    Sines and cosines of the frame's number; a picture by itself has none.
    """
    count, _, size = frames.shape
    if count == 1:
        return torch.zeros_like(frames[0])
    steps = 10_000.0 ** -(torch.arange(size // 2, device=frames.device, dtype=torch.float32) / (size // 2))
    turned = torch.arange(count, device=frames.device).unsqueeze(1) * steps
    table = torch.cat((turned.sin(), turned.cos()), dim=1).to(frames.dtype)
    return table.unsqueeze(1).expand_as(frames).flatten(0, 1)


def angles_in_turn(batch: PictureBatch, head_dim: int, theta: float) -> torch.Tensor:
    """As `angles`; each frequency turns a pair of elements by the column, and the next pair by the row."""
    steps = torch.arange(0, head_dim // 2, 2, device=batch.device, dtype=torch.float32) / (head_dim // 2)
    columns_and_rows = batch.rows_and_columns.flip(1).unsqueeze(1)
    return as_table((columns_and_rows * theta ** -steps.unsqueeze(1)).flatten(1))
