"""`Encoder`: what every model has around its layers that reads texts in both directions and writes none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.checkpoint.weight_names import OwnNames
from atom_models.config.reading import read_config

# Weights of norms, as the first checkpoints of BERT spell them.
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class EncoderConfig:
    """Fields of `config.json` that all encoders have, under their Hugging Face names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    id2label: Mapping[str, str] = field(default_factory=dict)

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"is_decoder": (False,), "add_cross_attention": (False,)}
    # A decoder that shares the weights would have it; layers here tie nothing.
    unread: ClassVar[tuple[str, ...]] = ("tie_word_embeddings",)

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"config.json: num_attention_heads is {self.num_attention_heads}, which does not divide hidden_size, "
                f"{self.hidden_size}"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_labels(self) -> int:
        """Outputs of a classifier; transformers has two where the config names no labels."""
        return len(self.id2label) or 2


class Encoder(nn.Module):
    """``forward(input_ids, positions, token_types) -> hidden states [T, D]``, T tokens of texts that are whole.

    A class whose checkpoints have a head for classes also has ``classify(pooled [n, D]) -> [n, labels]``.

    Attributes:
        base_prefix: what names begin with in checkpoints that were saved with a head, such as "bert.".
        passed_over: beginnings of names, without that prefix, of weights for another task or that follow from the
            config.
    """

    config_class: ClassVar[type[Any]]
    base_prefix: ClassVar[str]
    passed_over: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__()
        if context.stage.count > 1:
            raise ValueError("an encoder runs in one stage: leave pipeline_parallel_size at 1")
        self.config = read_config(type(self).config_class, config)

    @classmethod
    def own_name(cls, stored: str) -> OwnNames:
        """The name here of a tensor of a checkpoint; None for those that are passed over.

        The prefix of the model is left out, and the oldest checkpoints call what norms learn gamma and beta.
        """
        name = stored.removeprefix(cls.base_prefix)
        if name.startswith(cls.passed_over):
            return None
        stem, _, last = name.rpartition(".")
        return f"{stem}.{_OLD_NAMES[last]}" if last in _OLD_NAMES else name

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """An encoder has no head over the vocabulary."""
        raise RuntimeError(f"{type(self).__name__} is an encoder and gives no logits of tokens")
