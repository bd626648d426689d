"""Qwen3-Next: delta nets, and gated attention in each fourth layer; Yang et al. 2024, https://arxiv.org/abs/2412.06464.

Experts as in Qwen3-MoE, beside one that sees every token behind a gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.protocols import Collectives
from atom_models.architectures.qwen3_moe import Qwen3MoeConfig
from atom_models.architectures.qwen_hybrid import (
    QwenDeltaNet,
    QwenHybridConfig,
    QwenHybridDecoderLayer,
    QwenHybridForCausalLM,
)
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

    def make_shards(self, problem: DeltaNetProblem, ranks: Collectives) -> tuple[Shard, ...]:
        ratio, num_heads = problem.num_value_heads // problem.num_key_heads, problem.num_key_heads
        values = ratio * problem.value_dim
        return (
            _by_key_heads("in_proj_qkvz", num_heads, (problem.key_dim, problem.key_dim, values, values), ranks),
            _by_key_heads("in_proj_ba", num_heads, (ratio, ratio), ranks),
        )


def _by_key_heads(name: str, num_heads: int, sizes: tuple[int, ...], ranks: Collectives) -> Shard:
    """A linear that stores so many outputs of each kind for each key head in turn; the layer gives kind by kind.

    `num_heads` are those of this rank.
    """
    of_head, first_head = sum(sizes), ranks.rank * num_heads
    starts = accumulate(sizes, initial=0)
    runs = [
        (head * of_head + start, head * of_head + start + size)
        for start, size in zip(starts, sizes, strict=False)
        for head in range(first_head, first_head + num_heads)
    ]
    return Shard(name, ranks.size * num_heads * of_head, ranks.size, tuple(runs))


class Qwen3NextDecoderLayer(QwenHybridDecoderLayer):
    delta_net = Qwen3NextDeltaNet


class Qwen3NextForCausalLM(QwenHybridForCausalLM):
    config_class = Qwen3NextConfig
    decoder_layer = Qwen3NextDecoderLayer
