"""What the layers of all towers do, whatever norms and names they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_models.layers import (
    GatedActivation,
    Layer,
    LayerNorm,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    Residual,
    RMSNorm,
)
from atom_models.vision.attention import AttendedRuns

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class PictureBlock(Layer):
    """``forward(residual, runs)``: attention, then an MLP, each of what its norm makes of the sum so far."""

    def __init__(
        self, attention_norm: LayerNorm | RMSNorm, attention: Layer, mlp_norm: LayerNorm | RMSNorm, mlp: Layer
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, residual: Residual, runs: AttendedRuns) -> Residual:
        residual = residual.plus(self.attention(self.attention_norm(residual), runs))
        return residual.plus(self.mlp(self.mlp_norm(residual)))


class GatedPictureMLP(Layer):
    """``forward(x [T, hidden_size]) -> [T, hidden_size]``; each rank has all of it."""

    def __init__(
        self, hidden_size: int, inner_size: int, activation: str, context: BuildContext, *, prefix: str, bias: bool
    ) -> None:
        super().__init__()
        parts = {"gate_proj": inner_size, "up_proj": inner_size}
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, parts, context, prefix=f"{prefix}.gate_up_proj", bias=bias
        )
        self.act = GatedActivation(activation, inner_size, context, after=self.gate_up_proj)
        self.down_proj = ReplicatedLinear(inner_size, hidden_size, context, prefix=f"{prefix}.down_proj", bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act(self.gate_up_proj(x)))
