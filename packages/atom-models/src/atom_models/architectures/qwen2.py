"""Qwen2 and Qwen2.5: Yang et al. 2024, https://arxiv.org/abs/2407.10671. Llama with biases in q, k and v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from atom_models.architectures.llama import LlamaConfig, LlamaForCausalLM
from atom_models.checkpoint.layer_types import FULL, SLIDING, check_layer_types


@dataclass(frozen=True)
class Qwen2Config(LlamaConfig):
    """Fields of `config.json`. Layers have a window where `layer_types` says so, or from `max_window_layers` on."""

    use_sliding_window: bool = False
    sliding_window: int = 4096
    max_window_layers: int = 28
    layer_types: Sequence[str] | None = None

    @property
    def qkv_bias(self) -> bool:
        return True

    def window_of(self, layer_id: int) -> int | None:
        return self.sliding_window if self._types[layer_id] == SLIDING else None

    @cached_property
    def _types(self) -> tuple[str, ...]:
        num_layers = self.num_hidden_layers
        if not self.use_sliding_window:
            return (FULL,) * num_layers
        if self.layer_types is not None:
            return check_layer_types(self.layer_types, num_layers)
        return tuple(SLIDING if layer_id >= self.max_window_layers else FULL for layer_id in range(num_layers))


class Qwen2ForCausalLM(LlamaForCausalLM):
    config_class = Qwen2Config
