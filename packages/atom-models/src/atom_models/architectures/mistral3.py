"""Mistral Small 3.1 and 3.2, and Ministral 3: Mistral that sees by the tower of Pixtral.

Agrawal et al. 2024, https://arxiv.org/abs/2410.07073.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atom_models.architectures.llama import LlamaAttention, LlamaDecoderLayer
from atom_models.architectures.mistral import MistralConfig, MistralForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import Normed, Rotary, Term
from atom_models.vision.sees import Sees
from atom_models.vision.towers.pixtral import PROJECTOR, PixtralTower

_TEXTS = ("mistral", "ministral3")


@dataclass(frozen=True)
class Mistral3Config(MistralConfig):
    """Fields of `text_config`. With `llama_4_scaling_beta` among those of the rotation queries grow with the text."""

    rope_follows: ClassVar[tuple[str, ...]] = ("llama_4_scaling_beta",)

    model_type: str = "mistral"

    def __post_init__(self) -> None:
        if self.model_type not in _TEXTS:
            raise ValueError(
                f"text_config: model_type is {self.model_type!r}, which is not supported in this architecture; it can "
                f"be {' or '.join(_TEXTS)}"
            )
        if self.growth and not self.rope.get("original_max_position_embeddings"):
            raise ValueError("rope_parameters has llama_4_scaling_beta, and lacks original_max_position_embeddings")

    @property
    def growth(self) -> float:
        """What is added to the factor on queries where the text is e times as long as the original length."""
        return float(self.rope.get("llama_4_scaling_beta") or 0.0)


@dataclass(frozen=True)
class Ministral3Config(Mistral3Config):
    """The same fields where the text is saved by itself."""

    model_type: str = "ministral3"


class Mistral3Attention(LlamaAttention):
    """Queries behind the original length are multiplied, so that the scores of a long text do not even out."""

    def __init__(self, config: Mistral3Config, context: BuildContext, **rest: Any) -> None:
        super().__init__(config, context, **rest)
        self._growth = config.growth
        self._length = int(config.rope.get("original_max_position_embeddings") or config.max_position_embeddings)

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        if not self._growth:
            return super().forward(positions, hidden_states)
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        factor = 1 + self._growth * torch.log1p((positions // self._length).float())
        return self.o_proj(self.attn(q * factor.unsqueeze(1).to(q.dtype), k, v, positions))


class Mistral3DecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: Mistral3Config, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> Mistral3Attention:
        return Mistral3Attention(config, context, layer_id=layer_id, prefix=prefix, rotary=rotary)


class Ministral3ForCausalLM(MistralForCausalLM):
    """The text alone, saved by itself."""

    config_class = Ministral3Config
    decoder_layer = Mistral3DecoderLayer


class Mistral3ForConditionalGeneration(Sees, MistralForCausalLM):
    """Weights go by the names of the published checkpoints."""

    config_class = Mistral3Config
    decoder_layer = Mistral3DecoderLayer
    tower = PixtralTower
    decoder_prefix = "language_model.model"
    head_prefix = "language_model.lm_head"
    vision_prefixes = ("vision_tower", PROJECTOR)
