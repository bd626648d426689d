"""DeepSeek-V3 and R1: DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437; Kimi-K2: https://arxiv.org/abs/2507.20534.

DeepSeek-V2 with another routing: sigmoid scores, groups of experts judged by their best two, and a bias that balances
the load and only helps to choose. Layers that predict further tokens lie behind the last one, for a draft model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.deepseek_v2 import DeepseekV2Config, DeepseekV2ForCausalLM
from atom_models.architectures.fine_grained_moe import biased_sigmoid_routing
from atom_models.layers import RoutingConfig


@dataclass(frozen=True, kw_only=True)
class DeepseekV3Config(DeepseekV2Config):
    """Fields of `config.json`; Kimi-K2's has the same. `mlp_layer_types`, where given, says which layers have experts.

    Layers that predict further tokens have some, and are not in the list.
    """

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"scoring_func": ("sigmoid",)}

    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    mlp_layer_types: Sequence[str] | None = None

    def has_experts(self, layer_id: int) -> bool:
        if self.mlp_layer_types is None or layer_id >= len(self.mlp_layer_types):
            return super().has_experts(layer_id)
        return self.mlp_layer_types[layer_id] == "sparse"

    @property
    def routing(self) -> RoutingConfig:
        if self.topk_method != "noaux_tc":
            raise ValueError(f"topk_method is {self.topk_method!r}, not noaux_tc")
        return biased_sigmoid_routing(self)


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    config_class = DeepseekV3Config
