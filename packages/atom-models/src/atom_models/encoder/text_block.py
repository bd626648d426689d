"""A layer of the tower of texts of CLIP and SigLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_models.layers import (
    EncoderAttention,
    Layer,
    LayerNorm,
    QKVParallelLinear,
    Residual,
    RowParallelLinear,
    Term,
    UngatedMLP,
)

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.encoder.dual import DualTextConfig


class TextAttention(Layer):
    """``forward(x [T, hidden_size], positions [T])``: what it adds to the residual."""

    def __init__(self, config: DualTextConfig, context: BuildContext, *, prefix: str, is_causal: bool) -> None:
        super().__init__()
        size, num_heads = config.hidden_size, context.split(config.num_attention_heads, "num_attention_heads")
        self.qkv_proj = QKVParallelLinear(
            size,
            head_dim=config.head_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_attention_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=True,
        )
        self.attn = EncoderAttention(
            num_heads, config.head_size, context=context, prefix=f"{prefix}.attn", causal=is_causal
        )
        self.out_proj = RowParallelLinear(size, size, context, prefix=f"{prefix}.out_proj", bias=True)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> Term:
        q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        return self.out_proj(self.attn(q, k, v, positions))


class TextBlock(Layer):
    """``forward(residual, positions)``: attention, then an MLP, each of what its norm makes of the sum so far."""

    def __init__(self, config: DualTextConfig, context: BuildContext, *, prefix: str, is_causal: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.attention_norm = LayerNorm(size, eps, context, prefix=f"{prefix}.layer_norm1")
        self.attention = TextAttention(config, context, prefix=f"{prefix}.self_attn", is_causal=is_causal)
        self.mlp_norm = LayerNorm(size, eps, context, prefix=f"{prefix}.layer_norm2")
        self.mlp = UngatedMLP(
            *(size, config.intermediate_size, config.hidden_act),
            context=context, prefix=f"{prefix}.mlp", up="fc1", down="fc2", bias=True,
        )  # fmt: skip

    def forward(self, residual: Residual, positions: torch.Tensor) -> Residual:
        residual = residual.plus(self.attention(self.attention_norm(residual), positions))
        return residual.plus(self.mlp(self.mlp_norm(residual)))
