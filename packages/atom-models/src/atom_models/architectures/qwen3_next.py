"""Qwen3-Next: delta nets, and gated attention in each fourth layer; Yang et al. 2024, https://arxiv.org/abs/2412.06464.

Experts as in Qwen3-MoE, beside one that sees every token behind a gate. All norms but that of the delta net are stored
less one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from atom_kernels.delta import DeltaNetProblem
from atom_models.architectures.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_norm
from atom_models.architectures.qwen3_moe import Qwen3MoeConfig
from atom_models.build_context import BuildContext
from atom_models.layers import (
    Attention,
    DeltaNet,
    Layer,
    Linear,
    MoEConfig,
    QKVParallelLinear,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    Shard,
    SharedExpertsConfig,
)

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(Qwen3MoeConfig):
    """Fields of `config.json`; `layer_types`, or else `full_attention_interval`, says which layers have attention."""

    norm_offset = 1.0

    norm_topk_prob: bool = True

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    shared_expert_intermediate_size: int
    full_attention_interval: int = 4
    layer_types: Sequence[str] | None = None

    def has_attention(self, layer_id: int) -> bool:
        """Whether layer `layer_id` has attention and not a delta net."""
        if self.layer_types is None:
            return (layer_id + 1) % self.full_attention_interval == 0
        kind = self.layer_types[layer_id]
        if kind not in (FULL, LINEAR):
            raise ValueError(f"layer_types has {kind!r} for layer {layer_id}; allowed are {FULL} and {LINEAR}")
        return kind == FULL

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        experts = super().experts_of(layer_id)
        shared = SharedExpertsConfig(self.shared_expert_intermediate_size, "shared_expert", "shared_expert_gate")
        return None if experts is None else replace(experts, shared_experts=shared)


class Qwen3NextAttention(Layer):
    """Attention whose output is scaled by a gate for each of its elements."""

    def __init__(
        self, config: Qwen3NextConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        self._head_size = size = config.head_size
        self._num_heads = context.split(config.num_attention_heads, f"{prefix}: num_attention_heads")
        # Each head's query lies before its gate.
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=size,
            num_heads=2 * config.num_attention_heads,
            num_kv_heads=config.kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.qkv_bias,
        )
        self.attn = Attention(
            self._num_heads,
            self.qkv_proj.num_kv_heads,
            size,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            q_norm=llama_norm(config, context, prefix=f"{prefix}.q_norm", size=size),
            k_norm=llama_norm(config, context, prefix=f"{prefix}.k_norm", size=size),
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * size,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.output_bias,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        q_and_gate, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        q, gate = q_and_gate.view(-1, self._num_heads, 2 * self._head_size).chunk(2, dim=-1)
        attended = self.attn(q.flatten(1), k, v, positions)
        return self.o_proj(attended * torch.sigmoid(gate.flatten(1)))


class Qwen3NextDeltaNet(Layer):
    """A gated delta net. H: key heads, r: value heads that read each of them."""

    def __init__(self, config: Qwen3NextConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        problem = DeltaNetProblem(
            num_key_heads=key_heads,
            num_value_heads=value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            conv_width=config.linear_conv_kernel_dim,
            dtype=context.dtype_name,
        )
        if value_heads % key_heads:
            raise ValueError(
                f"linear_num_value_heads is {value_heads}; it must be a multiple of linear_num_key_heads, {key_heads}"
            )
        values, size = value_heads * problem.value_dim, value_heads // key_heads * problem.value_dim
        self._problem, self._ratio = problem, value_heads // key_heads
        # Of each key head: its query, its key, and the values and gates of the value heads that read it.
        self._of_head = [problem.key_dim, problem.key_dim, size, size]
        self._sizes = [problem.channels + values, 2 * value_heads]
        self.qkv_proj = Linear(
            config.hidden_size,
            (Shard("in_proj_qkvz", self._sizes[0]), Shard("in_proj_ba", self._sizes[1])),
            context,
            prefix=f"{prefix}.in_proj",
        )
        self.delta = DeltaNet(problem, context=context, prefix=f"{prefix}.delta")
        self.norm = RMSNorm(problem.value_dim, config.rms_norm_eps, context, prefix=f"{prefix}.norm")
        self.out_proj = RowParallelLinear(values, config.hidden_size, context, prefix=f"{prefix}.out_proj")

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        qkvz, ba = self.qkv_proj(hidden_states).split(self._sizes, dim=-1)
        heads = self._problem.num_key_heads
        q, k, v, z = (x.flatten(1) for x in qkvz.unflatten(1, (heads, -1)).split(self._of_head, dim=-1))
        b, a = (x.flatten(1) for x in ba.unflatten(1, (heads, -1)).split([self._ratio, self._ratio], dim=-1))
        mixed = self.delta(torch.cat([q, k, v], dim=-1), a, b).view(-1, self._problem.value_dim)
        gated = self.norm(mixed) * F.silu(z.reshape(mixed.shape).float())
        return self.out_proj(gated.to(mixed.dtype).view(z.shape))


class Qwen3NextDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: Qwen3NextConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> Any:
        if config.has_attention(layer_id):
            return Qwen3NextAttention(config, context, layer_id=layer_id, prefix=prefix, rotary=rotary)
        return Qwen3NextDeltaNet(config, context, prefix=f"{prefix.rpartition('.')[0]}.linear_attn")


class Qwen3NextForCausalLM(LlamaForCausalLM):
    """Layers that predict further tokens, `mtp`, are left unread."""

    config_class = Qwen3NextConfig
    decoder_layer = Qwen3NextDecoderLayer

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        self.ignored_prefixes = (*self.ignored_prefixes, "mtp.")
