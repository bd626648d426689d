"""Kimi-Linear: Kimi Team 2025, https://arxiv.org/abs/2510.26692.

Delta nets whose key channels decay by gates of their own, and in every fourth layer latent attention that nothing
rotates: the delta nets tell positions apart. Experts as in DeepSeek-V3, behind other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from atom_kernels.delta import DeltaNetProblem
from atom_models.architectures.deepseek_v2 import DeepseekV2Attention
from atom_models.architectures.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from atom_models.architectures.llama import LlamaDecoderLayer
from atom_models.build_context import BuildContext
from atom_models.checkpoint import CheckpointError
from atom_models.layers import (
    ChannelDeltaNet,
    ColumnParallelLinear,
    Layer,
    Linear,
    MoEConfig,
    Normed,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    Shard,
    Term,
)

FULL, LINEAR = "full_attention", "linear_attention"


def _also(*names: str, **default: Any) -> Any:
    return field(metadata={"also": names}, **default)


@dataclass(frozen=True, kw_only=True)
class KimiLinearConfig(DeepseekV3Config):
    """Fields of `config.json`. `linear_attn_config` has the heads of delta nets, and which layers have none.

    Its layers are counted from 1; `layer_types`, which transformers writes, has a word for each.
    """

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scoring_func": ("sigmoid",),
        "moe_router_activation_func": ("sigmoid",),
        "mla_use_nope": (True,),
        "q_lora_rank": (),
    }
    unread: ClassVar[tuple[str, ...]] = (
        "linear_head_dim",
        "linear_num_heads",
        "linear_conv_kernel_dim",
        "use_grouped_topk",
        "rope_theta",
        "rope_scaling",
    )

    max_position_embeddings: int = _also("model_max_length", default=2048)
    n_routed_experts: int = _also("num_experts", "num_local_experts")
    num_experts_per_tok: int = _also("num_experts_per_token")
    n_shared_experts: int = _also("num_shared_experts", default=0)
    n_group: int = _also("num_expert_group", default=1)
    norm_topk_prob: bool = _also("moe_renormalize", default=True)
    first_k_dense_replace: int = 1
    linear_attn_config: Mapping[str, Any]
    layer_types: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim", "short_conv_kernel_size", "full_attn_layers"):
            if name not in self.linear_attn_config:
                raise CheckpointError(f"config.json: linear_attn_config lacks {name}")
        for kind in self.layer_types or ():
            if kind not in (FULL, LINEAR):
                raise CheckpointError(f"config.json: layer_types has {kind!r}; allowed are {FULL} and {LINEAR}")

    def has_attention(self, layer_id: int) -> bool:
        """Whether layer `layer_id` has attention and not a delta net."""
        if self.layer_types is not None:
            return self.layer_types[layer_id] == FULL
        return layer_id + 1 in self.linear_attn_config["full_attn_layers"]

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        experts = super().experts_of(layer_id)
        return None if experts is None else replace(experts, name="block_sparse_moe")


class KimiDeltaNet(Layer):
    """A delta net (KDA): gates of key channels and of outputs are made in two steps, over `head_dim` numbers."""

    def __init__(self, config: KimiLinearConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        given = config.linear_attn_config
        heads, size, num_ranks = given["num_heads"], given["head_dim"], context.collectives.size
        on_rank = context.split(heads, f"{prefix}: linear_attn_config.num_heads")
        problem = DeltaNetProblem(
            num_key_heads=on_rank,
            num_value_heads=on_rank,
            key_dim=size,
            value_dim=size,
            conv_width=given["short_conv_kernel_size"],
            dtype=context.dtype_name,
            channel_gates=True,
            num_drafts=context.num_drafts,
        )
        shared = {"q_proj": heads * size, "k_proj": heads * size, "v_proj": heads * size, "b_proj": heads}
        shards = [Shard(name, outputs, num_ranks) for name, outputs in shared.items()]
        # The first of the two steps in which gates are made is every rank's own.
        shards += [Shard("f_a_proj", size), Shard("g_a_proj", size)]
        self._sizes = [problem.channels, on_rank, size, size]
        self._head_dim = size
        self.qkv_proj = Linear(config.hidden_size, shards, context, prefix=f"{prefix}.qkv_proj")
        self.f_b_proj = ColumnParallelLinear(size, heads * size, context, prefix=f"{prefix}.f_b_proj")
        self.g_b_proj = ColumnParallelLinear(size, heads * size, context, prefix=f"{prefix}.g_b_proj")
        self.delta = ChannelDeltaNet(problem, context=context, prefix=f"{prefix}.delta")
        self.o_norm = RMSNorm(size, config.rms_norm_eps, context, prefix=f"{prefix}.o_norm")
        self.o_proj = RowParallelLinear(heads * size, config.hidden_size, context, prefix=f"{prefix}.o_proj")

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        qkv, b, f, g = self.qkv_proj(hidden_states).split(self._sizes, dim=-1)
        mixed = self.delta(qkv, self.f_b_proj(f), b).view(-1, self._head_dim)
        gates = self.g_b_proj(g).view(mixed.shape)
        gated = self.o_norm(mixed).float() * torch.sigmoid(gates.float())
        return self.o_proj(gated.to(mixed.dtype).view(qkv.shape[0], -1))


class KimiLinearDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: KimiLinearConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> Any:
        if config.has_attention(layer_id):
            return DeepseekV2Attention(config, context, layer_id=layer_id, prefix=prefix, rotary=None)
        return KimiDeltaNet(config, context, prefix=prefix)


class KimiLinearForCausalLM(DeepseekV3ForCausalLM):
    config_class = KimiLinearConfig
    decoder_layer = KimiLinearDecoderLayer
