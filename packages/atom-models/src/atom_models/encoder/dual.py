"""`DualEncoder`: two towers, one for texts and one for pictures, whose vectors are compared with each other.

Radford et al. 2021, https://arxiv.org/abs/2103.00020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from atom_models.encoder.encoder import Encoder, EncoderConfig
from atom_models.encoder.text_block import TextBlock
from atom_models.layers import LayerNorm, ReplicatedLinear, Residual, VocabularyEmbedding

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.vision.reading import Vision
    from atom_models.vision.seen import SeenRows
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.tower import VisionTower


@dataclass(frozen=True, kw_only=True)
class DualTextConfig(EncoderConfig):
    """Fields of `text_config` that both families have, and how their towers differ.

    Attributes:
        is_causal: a token sees none behind itself.
        projection: what the checkpoint calls the last linear.
    """

    hidden_act: str
    layer_norm_eps: float

    is_causal: ClassVar[bool]
    projection: ClassVar[str]
    has_projection_bias: ClassVar[bool]
    # Settings of generation, which old releases of transformers wrote for every model.
    unread: ClassVar[tuple[str, ...]] = (
        *("tie_word_embeddings", "max_length", "num_beams", "num_beam_groups", "num_return_sequences"),
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    )

    @property
    def vector_size(self) -> int:
        """Elements of a vector."""
        raise NotImplementedError


class DualEncoder(Encoder):
    """``forward(input_ids, positions, seen=...) -> vectors [T, vector_size]``, one for each token.

    That of a text is its last token's. A picture has one token, in whose row the vector stands that its tower gave.

    Args:
        vision: what the tower of pictures is built from; None builds none, and passes its weights over.

    Attributes:
        tower: the class of the tower of pictures.
        vision_spec: what hosts need to know of pictures; None where the model takes none.
        vision: the tower; None where the model takes no pictures.
    """

    tower: ClassVar[Callable[..., VisionTower]]
    config_class: ClassVar[type[DualTextConfig]]
    base_prefix = ""
    # What a training loss multiplies by, and tables of positions 0, 1, 2 ...
    passed_over = (
        *("logit_scale", "logit_bias"),
        *("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"),
    )

    def __init__(self, config: Mapping[str, Any], context: BuildContext, vision: Vision | None = None) -> None:
        super().__init__(config, context)
        self.texts = TextTower(self.config, context, prefix="text_model")
        self.vision_spec: VisionSpec | None = None
        self.vision: VisionTower | None = None
        if vision is None:
            self.ignored_prefixes = ("vision_model.", "visual_projection.")
            return
        self.vision_spec, self.vision = vision.spec, type(self).tower(vision, context, prefix="vision_model")
        if self.vision.width != self.config.vector_size:
            raise ValueError(
                f"config.json: vectors of pictures have {self.vision.width} elements, and those of texts "
                f"{self.config.vector_size}: they could not be compared"
            )

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        token_types: torch.Tensor | None = None,
        *,
        seen: SeenRows | None = None,
    ) -> torch.Tensor:
        vectors = self.texts(input_ids, positions)
        return vectors if seen is None else seen.embedded(vectors)


class TextTower(nn.Module):
    """``forward(input_ids, positions) -> [T, vector_size]``."""

    def __init__(self, config: DualTextConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size

        def table(num_rows: int, name: str) -> VocabularyEmbedding:
            return VocabularyEmbedding(num_rows, size, context, prefix=f"{prefix}.embeddings.{name}")

        self.token_embedding = table(config.vocab_size, "token_embedding")
        self.position_embedding = table(config.max_position_embeddings, "position_embedding")
        self.layers = nn.ModuleList(
            TextBlock(config, context, prefix=f"{prefix}.encoder.layers.{layer_id}", is_causal=config.is_causal)
            for layer_id in range(config.num_hidden_layers)
        )
        self.norm = LayerNorm(size, config.layer_norm_eps, context, prefix=f"{prefix}.final_layer_norm")
        self.projection = ReplicatedLinear(
            size, config.vector_size, context, prefix=config.projection, bias=config.has_projection_bias
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        residual = Residual(self.token_embedding(input_ids) + self.position_embedding(positions))
        for layer in self.layers:
            residual = layer(residual, positions)
        return self.projection(self.norm(residual))
