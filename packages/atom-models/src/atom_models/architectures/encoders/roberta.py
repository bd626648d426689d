"""RoBERTa: Liu et al. 2019, https://arxiv.org/abs/1907.11692; XLM-R: Conneau et al. 2020, https://arxiv.org/abs/1911.02116.

BERT with positions that begin behind that of padding, and another head for classes. Jina publishes XLM-R under other
names of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.encoders.bert import BertConfig, BertModel
from atom_models.build_context import BuildContext
from atom_models.encoder import OwnNames, TanhHead
from atom_models.encoder.names_of_jina import own_names_of_jina


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """Fields of `config.json`, under their Hugging Face names."""

    pad_token_id: int = 1

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1


class RobertaModel(BertModel):
    config_class: ClassVar[type[RobertaConfig]] = RobertaConfig
    base_prefix = "roberta."
    passed_over = ("embeddings.position_ids", "pooler.", "lm_head.")

    @classmethod
    def own_name(cls, stored: str) -> OwnNames:
        return own_names_of_jina(super().own_name(stored))


class RobertaForMaskedLM(RobertaModel):
    """Saved with the head of its pre-training, which is passed over."""


class RobertaForSequenceClassification(RobertaModel):
    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        size, num_labels = self.config.hidden_size, self.config.num_labels
        names = {"dense": "classifier.dense", "out": "classifier.out_proj"}
        self.classify = TanhHead(size, num_labels, context, **names)


class XLMRobertaModel(RobertaModel):
    """The same layers, trained on many languages."""


class XLMRobertaForMaskedLM(RobertaForMaskedLM):
    """As RoBERTa's."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification):
    """As RoBERTa's."""
