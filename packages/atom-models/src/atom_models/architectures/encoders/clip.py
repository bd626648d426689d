"""CLIP: Radford et al. 2021, https://arxiv.org/abs/2103.00020."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.encoder.dual import DualEncoder, DualTextConfig
from atom_models.vision.towers.clip import CLIPTower


@dataclass(frozen=True, kw_only=True)
class CLIPTextConfig(DualTextConfig):
    """Fields of `text_config`, and `projection_dim` of all. Absent ones are those of the published base model."""

    vocab_size: int = 49_408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    projection_dim: int = 512

    is_causal = True
    projection = "text_projection"
    has_projection_bias = False

    @property
    def vector_size(self) -> int:
        return self.projection_dim


class CLIPModel(DualEncoder):
    """The vector of a text is that of the token that ends it, which the tokenizer puts there."""

    config_class = CLIPTextConfig
    tower = CLIPTower
