"""Qwen3: Yang et al. 2025, https://arxiv.org/abs/2505.09388. Qwen2 with QK norms in place of biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.llama import LlamaForCausalLM
from atom_models.architectures.qwen2 import Qwen2Config
from atom_models.build_context import BuildContext
from atom_models.layers import ReplicatedLinear


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """Fields of `config.json`; heads are 128 wide whatever the hidden size."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"use_qk_norm": (True,)}

    head_dim: int | None = 128

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_head_norms(self) -> bool:
        return True


class Qwen3ForCausalLM(LlamaForCausalLM):
    config_class = Qwen3Config


class Qwen3ForSequenceClassification(Qwen3ForCausalLM):
    """``classify(pooled [n, D]) -> [n, labels]``, of last tokens' hidden states, in the place of a head over words."""

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__({**config, "tie_word_embeddings": True}, context)
        num_labels = len(config.get("id2label") or ()) or 2
        self.classify = ReplicatedLinear(self.config.hidden_size, num_labels, context, prefix="score", quantized=False)
