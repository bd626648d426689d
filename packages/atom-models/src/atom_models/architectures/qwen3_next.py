"""Qwen3-Next: delta nets, and gated attention in each fourth layer; Yang et al. 2024, https://arxiv.org/abs/2412.06464.

Experts as in Qwen3-MoE, beside one that sees every token behind a gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom_kernels.delta import DeltaNetProblem
from atom_models.architectures.llama import LlamaForCausalLM
from atom_models.architectures.qwen3_moe import Qwen3MoeConfig
from atom_models.architectures.qwen_hybrid import QwenDeltaNet, QwenHybridConfig, QwenHybridDecoderLayer
from atom_models.layers import MoEConfig, Shard, SharedExpertsConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(QwenHybridConfig, Qwen3MoeConfig):
    """Fields of `config.json`."""

    norm_topk_prob: bool = True
    shared_expert_intermediate_size: int

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        experts = super().experts_of(layer_id)
        shared = SharedExpertsConfig(self.shared_expert_intermediate_size, "shared_expert", "shared_expert_gate")
        return None if experts is None else replace(experts, shared_experts=shared)


class Qwen3NextDeltaNet(QwenDeltaNet):
    """Rows are stored by key heads: a query, a key, and the values and gates of the value heads that read them."""

    def make_shards(self, problem: DeltaNetProblem) -> tuple[Shard, ...]:
        values = problem.num_value_heads * problem.value_dim
        return (
            Shard("in_proj_qkvz", problem.channels + values),
            Shard("in_proj_ba", 2 * problem.num_value_heads),
        )

    def parts(self, projected: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        qkvz, ba = projected
        heads = self.problem.num_key_heads
        ratio = self.problem.num_value_heads // heads
        values, keys = ratio * self.problem.value_dim, self.problem.key_dim
        q, k, v, z = (x.flatten(1) for x in qkvz.unflatten(1, (heads, -1)).split([keys, keys, values, values], dim=-1))
        b, a = (x.flatten(1) for x in ba.unflatten(1, (heads, -1)).split([ratio, ratio], dim=-1))
        return torch.cat([q, k, v], dim=-1), z, a, b


class Qwen3NextDecoderLayer(QwenHybridDecoderLayer):
    delta_net = Qwen3NextDeltaNet


class Qwen3NextForCausalLM(LlamaForCausalLM):
    """Layers that predict further tokens, `mtp`, are left unread."""

    config_class = Qwen3NextConfig
    decoder_layer = Qwen3NextDecoderLayer
    passed_over = ("mtp.",)
