"""What one rank of a model multiplies and keeps in a step: asked of its layers, before any weight is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from atom_kernels.formats import num_bytes
from atom_models.layers import MoE, RowParallelLinear, VocabularyEmbedding
from atom_models.layers.weights import Weights
from atom_models.model import mixer_layers
from atom_models.quantization import AS_STORED, ONLINE, ROUNDED_TO
from atom_models.requirements.products import products
from atom_models.vision.sees import language_modules


@dataclass(frozen=True)
class Matrix:
    """A matrix that tokens are multiplied with; in a mixture every expert has one.

    Attributes:
        shape: outputs and inputs, on this rank.
        stored: the number format of the checkpoint.
        stored_bytes: bytes of one expert's in that format.
        is_rounded: whether it takes part where weights are rounded while loading.
        is_head: it makes logits, of the tokens that are sampled alone.
        num_experts, top_k: experts that have one, and those that a token chooses.
    """

    shape: tuple[int, int]
    stored: str
    stored_bytes: float
    is_rounded: bool
    is_head: bool = False
    num_experts: int = 1
    top_k: int = 1

    @property
    def num_numbers(self) -> int:
        return self.shape[0] * self.shape[1]

    def num_bytes(self, weight_format: str) -> float:
        """Bytes of one expert's, where the model's weights are in this format; `AS_STORED` for the checkpoint's."""
        if weight_format == AS_STORED:
            return self.stored_bytes
        if weight_format == "float32":
            return 4 * self.num_numbers
        if weight_format in ROUNDED_TO and self.is_rounded:
            return num_bytes(ROUNDED_TO[weight_format], *self.shape)
        return 2 * self.num_numbers


@dataclass(frozen=True)
class RankWork:
    """All that a step of one rank runs.

    Attributes:
        matrices: each with the number of layers that have one like it; those inside mixers are left out.
        mixers: the problems of layers with a cache, with the number of layers.
        hidden_size: elements of what layers hand on.
        vocab_size: logits of a token, of all ranks together.
        num_sums: sums over ranks in a step, where there are several.
        num_mixtures: layers with experts.
    """

    matrices: Mapping[Matrix, int]
    mixers: Mapping[Any, int]
    hidden_size: int
    vocab_size: int
    num_sums: int
    num_mixtures: int


def rank_work(model: nn.Module) -> RankWork:
    """Asks the layers of one rank's model; a tower runs beside the steps and is left out."""
    modules = language_modules(model)
    tables = [(layer.hidden_size, layer.vocab_size) for layer in modules if isinstance(layer, VocabularyEmbedding)]
    hidden_size, vocab_size = tables[-1] if tables else (0, 0)
    num_mixtures = sum(isinstance(layer, MoE) for layer in modules)
    num_rows_cut = sum(isinstance(layer, RowParallelLinear) for layer in modules)
    return RankWork(
        matrices=Counter(
            matrix
            for _, found, is_head in products(modules)
            for weights in found
            for matrix in _matrices(weights, is_head=is_head)
        ),
        mixers=Counter(layer.problem for layer in mixer_layers(model).values()),
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        # One behind the embedding, and one for each product whose inputs are cut.
        num_sums=1 + num_rows_cut + num_mixtures,
        num_mixtures=num_mixtures,
    )


def _matrices(weights: Weights, *, is_head: bool) -> list[Matrix]:
    top_k, num_experts = weights.chosen or (1, 1)
    is_rounded = weights.packed_on is not None and not ONLINE["int8"].skips(weights.names[0])
    return [
        Matrix(one.shape, weights.stored, one.stored_bytes / num_experts, is_rounded, is_head, num_experts, top_k)
        for one in weights.on_rank
        if len(one.shape) == 2
    ]
