"""SigLIP: Zhai et al. 2023, https://arxiv.org/abs/2303.15343. So is SigLIP 2 where pictures have one size."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.encoder.dual import DualEncoder, DualTextConfig
from atom_models.vision.towers.siglip_vectors import SiglipVectors


@dataclass(frozen=True, kw_only=True)
class SiglipTextConfig(DualTextConfig):
    """Fields of `text_config`. Absent ones are those of the published base model."""

    vocab_size: int = 32_000
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 64
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    projection_size: int | None = None

    is_causal = False
    projection = "text_model.head"
    has_projection_bias = True

    @property
    def vector_size(self) -> int:
        return self.hidden_size if self.projection_size is None else self.projection_size


class SiglipModel(DualEncoder):
    """Texts are padded to the longest (`Checkpoint.text_padding`), and the last token gives the vector."""

    config_class = SiglipTextConfig
    tower = SiglipVectors
