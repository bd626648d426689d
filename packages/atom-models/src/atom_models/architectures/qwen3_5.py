"""Qwen3.5, as dense models and as mixtures of experts: Qwen3-Next's layers under other names.

Published checkpoints take images too, by Qwen3-VL's tower without its DeepStack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.protocols import Collectives
from atom_models.architectures.qwen3_next import Qwen3NextConfig
from atom_models.architectures.qwen_hybrid import (
    QwenDeltaNet,
    QwenHybridConfig,
    QwenHybridDecoderLayer,
    QwenHybridForCausalLM,
)
from atom_models.layers import MoEConfig, Shard
from atom_models.vision.sees import Sees
from atom_models.vision.towers.qwen3_vl import Qwen3_5VisionTower


@dataclass(frozen=True, kw_only=True)
class Qwen3_5Config(QwenHybridConfig):
    """Fields of `config.json`, of its `text_config` where that is nested."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"attn_output_gate": (True,)}
    # The first two describe layers that predict further tokens. A state is float32 here whatever the third says.
    unread: ClassVar[tuple[str, ...]] = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")

    @property
    def rope(self) -> Mapping[str, Any]:
        """A quarter of each head rotates where the config does not say; frequencies take turns among directions."""
        usual = {"partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
        return {**usual, **self.rope_parameters, "mrope_interleaved": True}


@dataclass(frozen=True, kw_only=True)
class Qwen3_5MoeConfig(Qwen3_5Config, Qwen3NextConfig):
    """Fields of `config.json`; `intermediate_size` is that of layers without experts, which published models lack."""

    intermediate_size: int = 0

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        experts = super().experts_of(layer_id)
        if experts is None and not self.intermediate_size:
            raise ValueError(f"layer {layer_id} has no experts, and the config lacks intermediate_size for its MLP")
        return experts


class Qwen3_5DeltaNet(QwenDeltaNet):
    """Rows are stored apart: all queries, keys and values; the gates of outputs; what makes betas, and decays."""

    def make_shards(self, problem: DeltaNetProblem, ranks: Collectives) -> tuple[Shard, ...]:
        heads, num_ranks = problem.num_value_heads * ranks.size, ranks.size
        return (
            Shard.of_parts("in_proj_qkv", problem.parts, ranks),
            Shard("in_proj_z", heads * problem.value_dim, num_ranks),
            Shard("in_proj_b", heads, num_ranks),
            Shard("in_proj_a", heads, num_ranks),
        )


class Qwen3_5DecoderLayer(QwenHybridDecoderLayer):
    delta_net = Qwen3_5DeltaNet


class Qwen3_5ForCausalLM(QwenHybridForCausalLM):
    config_class = Qwen3_5Config
    decoder_layer = Qwen3_5DecoderLayer


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    config_class = Qwen3_5MoeConfig


class Qwen3_5ForConditionalGeneration(Sees, Qwen3_5ForCausalLM):
    """The published model, which takes images."""

    tower = Qwen3_5VisionTower
    decoder_prefix = "model.language_model"


class Qwen3_5MoeForConditionalGeneration(Qwen3_5ForConditionalGeneration):
    config_class = Qwen3_5MoeConfig
