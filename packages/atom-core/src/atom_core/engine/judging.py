"""`Judging`: what a model's folder says about scores of pairs of texts, and about labels of texts. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atom_core.engine.encoder_files import SETTINGS, read_object
from atom_core.messages import Pooling, PoolingKind

if TYPE_CHECKING:
    from atom_models import Checkpoint

Way = Literal["labels", "words", "vectors", "likelihood"]
Activation = Literal["sigmoid", "softmax", "none"]

# The classes that are given a template of texts, and those that have the pair's second text marked by types of tokens.
_OF_QWEN3 = ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification")
_WITH_TYPES = ("BertForSequenceClassification",)
# What a published Qwen3-Reranker is asked to answer: first what means that the document does not help.
_WORDS = ("no", "yes")
# Modules by which a cross-encoder of sentence-transformers says what its scores go through.
_ACTIVATIONS: Mapping[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


@dataclass(frozen=True)
class Labels:
    """Labels of a model whose head scores them.

    Attributes:
        names: in the order of the scores.
        pooling: which hidden state the head reads.
        activation: what makes probabilities of the scores.
    """

    names: tuple[str, ...]
    pooling: Pooling
    activation: Activation

    def probabilities(self, scores: Sequence[float]) -> list[float]:
        """What the scores come to, label by label."""
        if self.activation == "none":
            return list(scores)
        if self.activation == "sigmoid":
            return [_sigmoid(score) for score in scores]
        largest = max(scores)
        exponentials = [math.exp(score - largest) for score in scores]
        return [value / sum(exponentials) for value in exponentials]


@dataclass(frozen=True)
class Judging:
    """How a model judges a query and a document, and what else it says of texts.

    Attributes:
        way: "labels": by a head over the pair. "words": by how likely one of two words is behind a template of both.
            "vectors": by the cosine of their vectors. "likelihood": by how likely one text is behind the other.
        labels: the model's labels; None where it has none.
        words: the two words, that for a document which does not help first.
        has_token_types: the second text of a pair is told apart by types of tokens.
        has_template: pairs are laid out by the template of Qwen3-Reranker, and not by the tokenizer.
    """

    way: Way
    labels: Labels | None = None
    words: tuple[str, str] = _WORDS
    has_token_types: bool = False
    has_template: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str) -> Judging:
        """What `checkpoint` says, which was asked for by `name`: a published reranker says it by its name alone."""
        from atom_models.architectures.registry import has_labels

        config, architecture = checkpoint.text_config, checkpoint.architecture
        if has_labels(architecture):
            labels = _labels(architecture, config, checkpoint.path)
            has_template = architecture in _OF_QWEN3 and len(labels.names) == 1
            return cls("labels", labels, has_token_types=architecture in _WITH_TYPES, has_template=has_template)
        words = _words(config)
        is_published = "qwen3-reranker" in f"{name} {checkpoint.path}".lower()
        if architecture in _OF_QWEN3 and (words or is_published):
            return cls("words", words=words or _WORDS, has_template=True)
        return cls("likelihood" if checkpoint.has_head else "vectors")


def _words(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The two words that a config names; None where it names none, or something else."""
    match config.get("classifier_from_token"):
        case [str(no), str(yes)]:
            return no, yes
    return None


def _labels(architecture: str, config: Mapping[str, Any], folder: Path) -> Labels:
    named = config.get("id2label") or {}
    # As transformers has it where nothing is said.
    names = tuple(str(named[key]) for key in sorted(named, key=int)) or ("LABEL_0", "LABEL_1")
    kind: PoolingKind = "last" if architecture in _OF_QWEN3 else "cls"
    if config.get("classifier_pooling") == "mean":
        kind = "mean"
    return Labels(names, Pooling(kind, normalizes=False, classifies=True), _activation(config, folder, len(names)))


def _activation(config: Mapping[str, Any], folder: Path, num_labels: int) -> Activation:
    # Newest first: a file of its own, then an object in the model's config, then a field of it.
    of_encoder = config.get("sentence_transformers")
    of_encoder = of_encoder.get("activation_fn") if isinstance(of_encoder, dict) else None
    of_folder = read_object(folder / SETTINGS).get("activation_fn")
    named = of_folder or of_encoder or config.get("sbert_ce_default_activation_function")
    if isinstance(named, str) and (found := _ACTIVATIONS.get(named.rpartition(".")[2])) is not None:
        return found
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    return "sigmoid" if num_labels == 1 or problem == "multi_label_classification" else "softmax"


def _sigmoid(x: float) -> float:
    """It stays finite for large numbers of either sign."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
