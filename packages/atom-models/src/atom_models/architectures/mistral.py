"""Mistral: Jiang et al. 2023, https://arxiv.org/abs/2310.06825. Llama with a sliding window in every layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_models.architectures.llama import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """Fields of `config.json`. The first release has a window and no `sliding_window`; null in later ones is none."""

    sliding_window: int | None = field(default=4096, metadata={"null": None})

    def window_of(self, layer_id: int) -> int | None:
        return self.sliding_window


class MistralForCausalLM(LlamaForCausalLM):
    config_class = MistralConfig
