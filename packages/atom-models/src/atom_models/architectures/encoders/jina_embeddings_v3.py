"""jina-embeddings-v3: Sturua et al. 2024, https://arxiv.org/abs/2409.10173.

XLM-R with rotated positions. Each task that it was trained for has an adapter (see `atom_models.adapters.tasks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atom_models.architectures.encoders.roberta import RobertaConfig, RobertaForSequenceClassification, RobertaModel


@dataclass(frozen=True)
class JinaEmbeddingsV3Config(RobertaConfig):
    """Fields of `config.json`, under their Hugging Face names."""

    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)

    # Other poolings and tokens that Jina's own code has for other models.
    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "position_embedding_type": ("rotary", "absolute"),
        "emb_pooler": (),
        "use_reg_tokens": (False,),
    }
    # Training's; what tasks there are, and what stands before their texts, is the host's to know.
    unread: ClassVar[tuple[str, ...]] = (
        *("load_trained_adapters", "lora_adaptations", "lora_alpha", "lora_dropout_p", "lora_main_params_trainable"),
        *("lora_rank", "output_past", "rotary_emb_base", "task_instructions", "truncate_dim"),
    )

    @property
    def rope(self) -> Mapping[str, Any]:
        return {"rope_type": "default", "rope_theta": 20_000.0, **self.rope_parameters}


class JinaEmbeddingsV3Model(RobertaModel):
    config_class: ClassVar[type[JinaEmbeddingsV3Config]] = JinaEmbeddingsV3Config


class JinaEmbeddingsV3ForMaskedLM(JinaEmbeddingsV3Model):
    """Saved with the head of its pre-training, which is passed over."""


class JinaEmbeddingsV3ForSequenceClassification(RobertaForSequenceClassification):
    """As RoBERTa's."""

    config_class: ClassVar[type[JinaEmbeddingsV3Config]] = JinaEmbeddingsV3Config
