"""Mixtral: Jiang et al. 2024, https://arxiv.org/abs/2401.04088. Mistral with a mixture of experts for each MLP."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.architectures.llama import LlamaForCausalLM
from atom_models.architectures.mistral import MistralConfig, MistralDecoderLayer
from atom_models.build_context import BuildContext
from atom_models.layers import MoE, RoutingConfig


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(MistralConfig):
    """Fields of `config.json`; `intermediate_size` is that of one expert. Without `sliding_window` all is seen."""

    sliding_window: int | None = None

    num_local_experts: int
    num_experts_per_tok: int = 2


class MixtralDecoderLayer(MistralDecoderLayer):
    def make_mlp(self, config: MixtralConfig, context: BuildContext, *, layer_id: int, prefix: str) -> MoE:
        return MoE(
            context,
            f"{prefix}.block_sparse_moe",
            num_experts=config.num_local_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            routing=RoutingConfig(renormalize=True),
        )


class MixtralForCausalLM(LlamaForCausalLM):
    config_class = MixtralConfig
    decoder_layer = MixtralDecoderLayer
