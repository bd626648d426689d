"""GLM-4.5 and its successors: GLM-4.5 team 2025, https://arxiv.org/abs/2508.06471.

A deep and narrow mixture of experts: the first layers dense, a shared expert in all others, routing as in DeepSeek-V3,
half of each head rotated, biases in q, k and v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.fine_grained_moe import FineGrainedMoEConfig
from atom_models.architectures.llama import LlamaForCausalLM


@dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig(FineGrainedMoEConfig):
    """Fields of `config.json`; `attention_bias` is that of q, k and v."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}

    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    use_qk_norm: bool = False

    @property
    def output_bias(self) -> bool:
        return False

    @property
    def has_head_norms(self) -> bool:
        return self.use_qk_norm


class Glm4MoeForCausalLM(LlamaForCausalLM):
    config_class = Glm4MoeConfig
